"""Which Ray a run uses, and what is said when it cannot be joined."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from disagmoe.cluster import join
from disagmoe.cluster.join import Target, choose, in_ray_job, joined
from disagmoe.config.cluster import ClusterConfig
from disagmoe.errors import ConfigError, PlacementError

RAY = {"RAY_ADDRESS": "10.0.0.1:6379"}
JOB = {**RAY, "RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}
THERE = "the Ray at 10.0.0.1:6379"


@pytest.mark.parametrize(
    ("mode", "address", "environ", "used"),
    [
        ("local", "", {}, "a Ray of its own on this machine"),
        ("local", "", {"RAY_ADDRESS": ""}, "a Ray of its own on this machine"),
        ("local", "", RAY, f"{THERE} (RAY_ADDRESS)"),
        ("local", "", JOB, f"{THERE} (RAY_ADDRESS)"),
        ("local", "local", RAY, "a Ray of its own on this machine"),
        ("local", "auto", {}, "the Ray of this machine (cluster.address)"),
        ("local", "auto", RAY, f"{THERE} (RAY_ADDRESS)"),
        ("local", "10.0.0.2:7000", RAY, "the Ray at 10.0.0.2:7000 (cluster.address)"),
        ("cluster", "", RAY, f"{THERE} (RAY_ADDRESS)"),
        ("cluster", "10.0.0.2:7000", {}, "the Ray at 10.0.0.2:7000 (cluster.address)"),
        ("cluster", "auto", {}, "the Ray of this machine (cluster.address)"),
    ],
)
def test_the_ray_that_is_used(mode: Any, address: str, environ: dict[str, str], used: str) -> None:
    assert str(choose(ClusterConfig(mode=mode, address=address), environ)) == used


@pytest.mark.parametrize(
    ("mode", "address", "environ", "message"),
    [
        (
            "cluster",
            "",
            {},
            'cluster.mode = "cluster" joins a Ray cluster and never starts one; name it with '
            "--address HOST:PORT, with --address auto on one of its nodes, or in RAY_ADDRESS, "
            "which `ray job submit` does",
        ),
        (
            "local",
            "",
            {"RAY_ADDRESS": "http://head:8265"},
            "RAY_ADDRESS = http://head:8265 is an address for `ray job submit` or the Ray client; "
            "a run needs that of the GCS, HOST:6379 if not chosen otherwise: change or unset it, "
            "or give --address",
        ),
        (
            "local",
            "local",
            JOB,
            "a Ray job cannot start a Ray of its own; leave --address and cluster.address out, to "
            "run in the Ray that the job was submitted to",
        ),
    ],
)
def test_no_ray_is_used_that_nobody_has_named(
    mode: Any, address: str, environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(ClusterConfig(mode=mode, address=address), environ)
    assert str(caught.value) == message


def test_the_entrypoint_of_a_ray_job_is_known_by_its_environment() -> None:
    assert in_ray_job(JOB)
    assert not in_ray_job(RAY)


def test_a_ray_of_its_own_is_not_started_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", None)
    with joined(Target("")) as there:
        assert there == Target("")


class Outside:
    """What `joined` sees of the world: a raylet, and what `ray.init` does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[Any] = []
        self.error: BaseException | None = None
        self.processes = [SimpleNamespace(info={"name": "raylet"})]
        monkeypatch.setattr(join, "_REACH_S", 0.2)
        monkeypatch.setattr(join, "_TRY_S", 0.05)
        monkeypatch.setattr(join.psutil, "process_iter", lambda _: iter(self.processes))
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        monkeypatch.setattr(ray, "init", self.init)
        context = SimpleNamespace(gcs_address="10.0.0.1:6379")
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(ray, "shutdown", lambda: self.said.append("shutdown"))

    def init(self, address: str, **_: Any) -> None:
        self.said.append(f"init {address}")
        if self.error is not None:
            raise self.error


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Outside:
    return Outside(monkeypatch)


@pytest.fixture
def server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def refusal(target: Target) -> str:
    with pytest.raises(PlacementError) as caught, joined(target):
        pass
    return str(caught.value)


def test_a_connection_lasts_as_long_as_the_block(outside: Outside, server: str) -> None:
    with joined(Target(server, "RAY_ADDRESS")) as there:
        assert outside.said == [f"init {server}"]
        assert there == Target("10.0.0.1:6379", "RAY_ADDRESS")
    assert outside.said == [f"init {server}", "shutdown"]


def test_nothing_answers(outside: Outside, server: str) -> None:
    host = "127.0.0.1:9"
    assert refusal(Target(host, "RAY_ADDRESS")) == (
        "cannot join the Ray at 127.0.0.1:9 (RAY_ADDRESS): nothing answers there (Connection "
        "refused); is the head up (`ray status`), and does a firewall let this machine in?"
    )
    assert outside.said == []


def test_a_machine_that_is_no_node(outside: Outside, server: str) -> None:
    outside.processes = []
    assert refusal(Target("auto", "cluster.address")) == (
        "cannot join the Ray of this machine (cluster.address): this machine is no node of it, for "
        "no raylet runs here; start the script on a node, with `ray job submit`, or `ray start "
        "--address` here first"
    )
    assert outside.said == []


class AuthenticationError(Exception):
    """Ray's is called so, too."""


def caused_by(cause: Exception) -> ConnectionError:
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            caused_by(AuthenticationError("token")),
            "it asks for a token that this process does not have; set RAY_AUTH_MODE=token, and "
            "RAY_AUTH_TOKEN to what `ray get-auth-token` prints on its head",
        ),
        (
            caused_by(RuntimeError("No node info found matching attributes: ''")),
            "this machine runs a node of another Ray; start the script on a node of it",
        ),
        (RuntimeError("Version mismatch: 3.11\nmore"), "Version mismatch: 3.11"),
    ],
)
def test_ray_refuses(outside: Outside, server: str, error: Exception, reason: str) -> None:
    outside.error = error
    target = Target(server, "cluster.address")
    assert refusal(target) == f"cannot join {target}: {reason}"


def test_a_connection_that_is_there_is_used_and_left(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    for address in ("auto", "10.0.0.1:6379"):
        with joined(Target(address, "cluster.address")):
            pass
    assert outside.said == []
    with (
        pytest.raises(
            ConfigError,
            match=r"connected to the Ray at 10\.0\.0\.1:6379, but RAY_ADDRESS names 10\.0\.0\.2:1;",
        ),
        joined(Target("10.0.0.2:1", "RAY_ADDRESS")),
    ):
        pass
