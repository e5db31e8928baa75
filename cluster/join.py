"""Which Ray a run uses: one of its own, or one that is there; never one that nobody has named."""

import logging
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import ray
from ray.exceptions import RayError

# isort: split
import psutil

from disagmoe.cluster.printing import printing_to_log
from disagmoe.cluster.signals import sigterm_handler_kept
from disagmoe.config.cluster import ClusterConfig
from disagmoe.errors import ConfigError, PlacementError

ADDRESS_VARIABLE = "RAY_ADDRESS"
_JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray sets it for the entrypoint of a job, alone
_REACH_S = 5.0
_TRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Target:
    """A Ray to use."""

    address: str
    """HOST:PORT, or `auto` for the one that runs on this machine; empty for one of its own."""
    source: str = ""
    """Who has named it."""

    @property
    def is_own(self) -> bool:
        """Whether it is started for the run and ends with it."""
        return not self.address

    def __str__(self) -> str:
        if self.is_own:
            return "a Ray of its own on this machine"
        where = "of this machine" if self.address == "auto" else f"at {self.address}"
        return f"the Ray {where} ({self.source})"


OWN = Target("")


def in_ray_job(environ: Mapping[str, str]) -> bool:
    """Whether this process is what `ray job submit` has started."""
    return _JOB_VARIABLE in environ


def choose(cluster: ClusterConfig, environ: Mapping[str, str]) -> Target:
    """Return the Ray that `cluster` and the environment name.

    Raises:
        ConfigError: a cluster is to be joined and none is named, or by an address of another kind.
    """
    given, source = cluster.address, "cluster.address"
    if given in ("", "auto") and environ.get(ADDRESS_VARIABLE):
        given, source = environ[ADDRESS_VARIABLE], ADDRESS_VARIABLE
        if "://" in given:
            raise ConfigError(
                f"{ADDRESS_VARIABLE} = {given} is an address for `ray job submit` or the Ray "
                "client; a run needs that of the GCS, HOST:6379 if not chosen otherwise: change or "
                "unset it, or give --address"
            )
    target = Target("" if given == "local" else given, source)
    if target.is_own and cluster.mode == "cluster":
        raise ConfigError(
            'cluster.mode = "cluster" joins a Ray cluster and never starts one; name it with '
            "--address HOST:PORT, with --address auto on one of its nodes, or in "
            f"{ADDRESS_VARIABLE}, which `ray job submit` does"
        )
    if target.is_own and in_ray_job(environ):
        raise ConfigError(
            "a Ray job cannot start a Ray of its own; leave --address and cluster.address out, to "
            "run in the Ray that the job was submitted to"
        )
    return target


@contextmanager
def joined(target: Target) -> Iterator[Target]:
    """Connect this process to `target` while the block runs, and return it with its real address;
    do nothing where it is to be its own.

    A connection that is there already is used, and left as it is.

    Raises:
        ConfigError: this process is connected to another Ray.
        PlacementError: `target` cannot be joined from here.
    """
    if target.is_own:
        yield target
        return
    if ray.is_initialized():
        _check_same(target)
        yield _found(target)
        return
    with printing_to_log():
        _join(target)
        try:
            yield _found(target)
        finally:
            ray.shutdown()


def _found(target: Target) -> Target:
    return replace(target, address=ray.get_runtime_context().gcs_address)


def _check_same(target: Target) -> None:
    here = ray.get_runtime_context().gcs_address
    if target.address not in ("auto", here):
        raise ConfigError(
            f"this process is connected to the Ray at {here}, but {target.source} names "
            f"{target.address}; call ray.shutdown() first, or name the same"
        )


def _join(target: Target) -> None:
    if target.address != "auto":
        _reach(target)
    if not any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"])):
        raise PlacementError(
            f"cannot join {target}: this machine is no node of it, for no raylet runs here; start "
            "the script on a node, with `ray job submit`, or `ray start --address` here first"
        )
    try:
        with sigterm_handler_kept():
            ray.init(address=target.address, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, RayError) as error:
        raise PlacementError(f"cannot join {target}: {_reason(error)}") from error


def _reach(target: Target) -> None:
    """Ray itself would try for minutes."""
    host, _, port = target.address.rpartition(":")
    end_s = time.monotonic() + _REACH_S
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
        except OSError as error:
            if time.monotonic() < end_s:
                time.sleep(_TRY_S)
                continue
            raise PlacementError(
                f"cannot join {target}: nothing answers there ({error.strerror or error}); is the "
                "head up (`ray status`), and does a firewall let this machine in?"
            ) from error
        return


def _reason(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ == "AuthenticationError":  # Ray has it from some 2.5x on
            return (
                "it asks for a token that this process does not have; set RAY_AUTH_MODE=token, and "
                "RAY_AUTH_TOKEN to what `ray get-auth-token` prints on its head"
            )
        if "No node info found" in str(cause):
            return "this machine runs a node of another Ray; start the script on a node of it"
        cause = cause.__cause__
    return str(error).splitlines()[0]
