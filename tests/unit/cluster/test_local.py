"""What a private Ray asks of this process before it starts."""

import os
from pathlib import Path

import pytest
import ray

from disagmoe.cluster import local
from disagmoe.cluster.local import check_local, local_ray
from disagmoe.errors import ConfigError, PlacementError


def test_a_ray_that_is_there_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with pytest.raises(ConfigError, match="this process is connected to one already; call ray"):
        check_local()
    with pytest.raises(ConfigError, match="connected to one already"), local_ray(1, 1):
        pass


def test_a_long_directory_does_not_fit_socket_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/" + "x" * 40)
    with pytest.raises(ConfigError, match=r"has 45 characters, too many .* use at most 28"):
        check_local()


def test_a_long_system_directory_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR")
    monkeypatch.setattr(local.tempfile, "gettempdir", lambda: "/tmp/" + "x" * 40)
    check_local()


def test_a_directory_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/does-not-exist")
    with pytest.raises(ConfigError, match="does-not-exist is no directory that can be written"):
        check_local()
    with (
        pytest.raises(ConfigError, match="does-not-exist is no directory that can be written"),
        local.temporary_folder(),
    ):
        pass


def test_a_start_that_fails_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, ray_tmpdir: str
) -> None:
    seen: dict[str, str] = {}

    def init(**options: object) -> None:
        seen.update(os.environ, temp_dir=str(options["_temp_dir"]))
        raise RuntimeError("no free port\nat all")

    monkeypatch.setattr(ray, "init", init)
    before = dict(os.environ)
    with (
        pytest.raises(PlacementError, match=r"Ray does not start on this machine: no free port$"),
        local_ray(4, 3),
    ):
        pass
    assert dict(os.environ) == before
    assert seen["temp_dir"].startswith(f"{ray_tmpdir}/dm-")
    assert not Path(seen["temp_dir"]).exists()
    assert (seen["OMP_NUM_THREADS"], seen["RAY_AUTH_MODE"]) == ("3", "token")
    assert len(seen["RAY_AUTH_TOKEN"]) == 64
    assert seen["PYTHONPATH"].split(os.pathsep)[0] == str(Path(__file__).resolve().parents[3])
