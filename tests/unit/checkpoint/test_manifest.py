import json
from pathlib import Path

import pytest

from disagmoe.checkpoint.manifest import read_manifest
from disagmoe.errors import CheckpointError
from disagmoe.storage import Location
from tests.unit.checkpoint.saved import TINY, small


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    place, manifest = small(tmp_path)
    assert read_manifest(place) == manifest
    assert manifest.run_config() == TINY
    assert manifest.step == 1
    assert manifest.size_bytes == sum(
        path.stat().st_size for path in tmp_path.rglob("*.safetensors")
    )
    assert manifest.parameters["a"].slices == [(0, 24, 0)]
    assert manifest.parameters["b"].slices == [(0, 7, 1)]


def test_no_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    place, _ = small(tmp_path)
    (tmp_path / "step-1/manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-1: holds no complete checkpoint; manifest\."):
        read_manifest(place)
    with pytest.raises(CheckpointError, match=r"step-2: holds no complete checkpoint"):
        read_manifest(Location.parse(str(tmp_path / "step-2")))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format_version": 1}'])
def test_a_damaged_manifest_is_refused(tmp_path: Path, text: str) -> None:
    place, _ = small(tmp_path)
    (tmp_path / "step-1/manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest\.json: is damaged"):
        read_manifest(place)


def test_another_version_is_named(tmp_path: Path) -> None:
    place, _ = small(tmp_path)
    (tmp_path / "step-1/manifest.json").write_text('{"format_version": 7}')
    with pytest.raises(CheckpointError, match=r"has format version 7, but .* reads 1; use the ver"):
        read_manifest(place)


def test_a_config_of_another_version_is_refused(tmp_path: Path) -> None:
    _, manifest = small(tmp_path)
    config = json.loads(json.dumps(manifest.config))
    config["model"]["depth"] = 3
    other = manifest.model_copy(update={"config": config})
    with pytest.raises(CheckpointError, match=r"saved by 1\)(.|\n)*depth"):
        other.run_config()
