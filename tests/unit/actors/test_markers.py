"""Markers by which processes find that they see the same files."""

from pathlib import Path

import pytest

from disagmoe.actors import markers as module
from disagmoe.actors.markers import Markers, missing_data


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEEN_WITHIN_S", 0.0)
    monkeypatch.setattr(module, "_POLL_S", 0.0)


def test_all_is_well_in_one_folder_and_nothing_stays(tmp_path: Path) -> None:
    markers = Markers(str(tmp_path / "run"))
    markers.begin()
    assert markers.meet("A0.0") == ""
    assert markers.meet("F0.0") == ""
    assert markers.unseen(["A0.0", "F0.0"]) == []
    markers.end()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_folder_of_the_same_name_elsewhere_is_another(tmp_path: Path) -> None:
    Markers(str(tmp_path), "theirs").begin()
    ours = Markers(str(tmp_path), "ours")
    assert ours.meet("A0.0") == (
        f"sees another {tmp_path} than the driver; name a run directory that all nodes share"
    )
    assert ours.unseen(["A0.0"]) == ["A0.0"]


def test_checkpoints_elsewhere_are_looked_for_too(tmp_path: Path) -> None:
    run_dir, folder = str(tmp_path / "run"), str(tmp_path / "c")
    markers = Markers(run_dir, checkpoints=folder)
    markers.begin()
    assert markers.meet("A0.0") == ""
    assert markers.unseen(["A0.0", "F0.0"]) == ["F0.0"]
    markers.end()
    assert list((tmp_path / "c").iterdir()) == []

    Markers(run_dir, markers.token).begin()
    assert markers.meet("A0.0") == (
        f"sees another {folder} than the driver; name a checkpoint.folder that all nodes share"
    )
    assert markers.unseen(["A0.0"]) == ["A0.0"]


def test_a_folder_that_is_not_there_is_another(tmp_path: Path) -> None:
    assert "sees another" in Markers(str(tmp_path / "run")).meet("A0.0")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    markers = Markers(str(tmp_path))
    markers.begin()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module.Location, "write_bytes", refuse)
    assert markers.meet("A0.0") == f"cannot write to {tmp_path}: Permission denied"


def test_a_late_marker_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEEN_WITHIN_S", 5.0)
    markers = Markers(str(tmp_path))
    monkeypatch.setattr(module.time, "sleep", lambda _: markers.begin())
    assert markers.unseen(["driver"]) == []


def test_data_that_is_not_to_be_seen(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here/manifest.json").touch()
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    assert missing_data([here]) == ""
    assert missing_data([here, there]) == (
        f"does not see the data {there}; name paths that all nodes share"
    )
