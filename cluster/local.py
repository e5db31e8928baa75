"""A Ray of this process's own, on this machine: loopback only, gone without a trace afterwards."""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray._private import ray_constants

from disagmoe.cluster.environment import environment, ray_variables, reread_environment
from disagmoe.cluster.printing import printing_to_log
from disagmoe.cluster.processes import children_that_mention, end_survivors
from disagmoe.cluster.signals import deferred, sigterm_handler_kept
from disagmoe.errors import ConfigError, PlacementError
from disagmoe.units import MIB

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_OBJECT_STORE_BYTES = 80 * MIB  # Ray takes no less than 75; only small messages go through it
_LONGEST_TEMP_DIR = 40
"""Unix sockets have paths of at most 103 characters (macOS), and Ray appends 63 to this one."""
_PREFIX = "dm-"
_RANDOM_CHARACTERS = 8  # that mkdtemp appends
_PATIENCE_S = 5.0


@contextmanager
def local_ray(cpus: int, threads: int) -> Iterator[str]:
    """Start a private Ray with `cpus` CPUs; yield the token that others need to join it; end it.

    Its processes compute with `threads` threads each, unless they choose otherwise.

    Raises:
        ConfigError: this process is connected to a Ray already, which is left alone.
        PlacementError: Ray does not start, or not on loopback.
    """
    check_local()
    with temporary_folder() as temp_dir, printing_to_log():
        try:
            yield _start(temp_dir, cpus, threads)
        finally:
            with deferred():
                processes = children_that_mention(temp_dir)
                ray.shutdown()
                end_survivors(processes, _PATIENCE_S)
                reread_environment()


def check_local() -> None:
    """Raise the ConfigErrors of `local_ray`, without starting anything."""
    if ray.is_initialized():
        raise ConfigError(
            'cluster.mode = "local" starts a Ray of its own, but this process is connected to one '
            "already; call ray.shutdown() first, or train in a process of its own"
        )
    _temp_base()


def _start(temp_dir: str, cpus: int, threads: int) -> str:
    alone = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
    variables = ray_variables(threads) | alone
    with environment(variables), loopback_as_node_address(), sigterm_handler_kept():
        try:
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.WARNING,
                _node_ip_address=LOOPBACK,
                _temp_dir=temp_dir,
            )
        except (RuntimeError, OSError, ValueError, TimeoutError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise PlacementError(f"Ray does not start on this machine: {reason}") from error
    address = _node_address()
    if address != LOOPBACK:
        raise PlacementError(
            f"Ray {ray.__version__} binds to {address}, though a local run must stay on "
            f"{LOOPBACK}; use a version of Ray that this release was tested with"
        )
    return variables["RAY_AUTH_TOKEN"]


def _node_address() -> str:
    return str(next(node["NodeManagerAddress"] for node in ray.nodes()))


@contextmanager
def loopback_as_node_address() -> Iterator[None]:
    """Let Ray accept 127.0.0.1 as a node's address, at which it then listens alone.

    On Linux it otherwise takes an outside address and listens on all interfaces, whatever it is
    given. This is its default on macOS and Windows (ray#18730); here it is a constant that Ray has
    read from the environment when it was imported.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Make a folder for the files of a Ray, gone with the block.

    Raises ConfigError when its path would be too long, or cannot be written to.
    """
    path = tempfile.mkdtemp(prefix=_PREFIX, dir=_temp_base())
    try:
        yield path
    finally:
        with deferred():
            shutil.rmtree(path, ignore_errors=True)


def _temp_base() -> str:
    """Directory for temporary files, short enough for Ray. Raises ConfigError for a long one, and
    for one that cannot be written to."""
    chosen = os.environ.get("RAY_TMPDIR")
    base = chosen or tempfile.gettempdir()
    longest = _LONGEST_TEMP_DIR - len(f"/{_PREFIX}") - _RANDOM_CHARACTERS
    if len(base) > longest:
        if chosen:
            raise ConfigError(
                f"RAY_TMPDIR = {chosen} has {len(base)} characters, too many for the paths of "
                f"Ray's sockets; use at most {longest}"
            )
        base = "/tmp"
    if not os.access(base, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{base} is no directory that can be written to; name another one for the temporary "
            "files of Ray with RAY_TMPDIR"
        )
    return base
