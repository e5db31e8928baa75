from datetime import UTC, datetime, timedelta
from pathlib import Path

from disagmoe.checkpoint.manifest import FileEntry
from disagmoe.checkpoint.report import GroupPart, age_s, examine, groups, layout, precision
from disagmoe.storage import Location
from tests.unit.checkpoint.saved import small


def test_groups_of_all_rings_add_up(tmp_path: Path) -> None:
    _, manifest = small(tmp_path)
    names = ("A0.0", "r1.A0.0", "F10.2")
    files = [FileEntry(name=n, worker=n, size_bytes=10 + i, sha256=[]) for i, n in enumerate(names)]
    parameters = {
        "a": manifest.parameters["a"].model_copy(update={"slices": [(0, 20, 0), (20, 24, 1)]}),
        "b": manifest.parameters["b"].model_copy(update={"slices": [(0, 7, 2)]}),
    }
    changed = manifest.model_copy(update={"files": files, "parameters": parameters})
    assert groups(changed) == {"A0": GroupPart(2, 24, 21), "F10": GroupPart(1, 7, 12)}


def test_age_counts_from_the_commit_and_is_never_negative(tmp_path: Path) -> None:
    _, manifest = small(tmp_path)
    saved_at = datetime.fromisoformat(manifest.saved_at)
    assert age_s(manifest, saved_at + timedelta(minutes=2)) == 120
    assert age_s(manifest, saved_at - timedelta(minutes=2)) == 0


def test_a_report_as_json(tmp_path: Path) -> None:
    place, manifest = small(tmp_path, 3)
    folder = Location.parse(str(tmp_path))
    now = datetime.fromisoformat(manifest.saved_at).astimezone(UTC) + timedelta(seconds=5)
    sizes = [file.size_bytes for file in manifest.files]
    assert examine(folder, [3], read=True).as_json(now) == {
        "folder": str(tmp_path),
        "ok": True,
        "incomplete": [],
        "set_aside": [],
        "checkpoints": [
            {
                "step": 3,
                "path": str(place),
                "saved_at": manifest.saved_at,
                "age_s": 5.0,
                "layout": manifest.run_config().parallel.summary,
                "precision": "auto",
                "updates": 3,
                "tokens": 300,
                "loss": 4.5,
                "parameters": 31,
                "tensors": 2,
                "bytes": sum(sizes),
                "files": [
                    {"name": f"A0.{i}.safetensors", "worker": f"A0.{i}", "bytes": size}
                    for i, size in enumerate(sizes)
                ],
                "groups": {"A0": {"workers": 2, "parameters": 31, "bytes": sum(sizes)}},
                "data": {},
                "programs_sha256": "00",
                "versions": {"disagmoe": "1"},
                "checked": "content",
                "problems": [],
            }
        ],
    }


def test_a_config_of_another_version_still_shows(tmp_path: Path) -> None:
    _, manifest = small(tmp_path)
    other = manifest.model_copy(update={"config": {"train": "?"}})
    assert (layout(other), precision(other)) == ("2 workers", "")
