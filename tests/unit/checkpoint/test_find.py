from pathlib import Path

import pytest

from disagmoe.checkpoint.find import Folder, find, folder_of, last_good, run_folder
from disagmoe.config.load import override
from disagmoe.config.tomlwrite import dump_toml
from disagmoe.errors import CheckpointDamaged, CheckpointError, ConfigError, StorageError
from disagmoe.storage import Location
from tests.unit.checkpoint.saved import TINY, saved_run, small


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that has saved after steps 2 and 4."""
    return saved_run(tmp_path / "run")


def test_every_way_to_name_a_checkpoint(run_dir: Path) -> None:
    folder = run_dir / "checkpoints"
    for text, step in (
        (run_dir, 4),
        (f"{run_dir}/", 4),
        (f"{run_dir}@2", 2),
        (folder, 4),
        (f"{folder}@2", 2),
        (f"file://{folder}", 4),
        (folder / "step-2", 2),
        (f"{folder}/step-2@2", 2),
    ):
        found = find(str(text))
        assert found.manifest.step == step
        assert str(found.place) == f"{folder}/step-{step}"
        assert found.folder == Folder(Location.parse(str(folder)), str(run_dir))


def test_a_folder_apart_belongs_to_no_run_directory(tmp_path: Path) -> None:
    small(tmp_path, 3)
    assert find(str(tmp_path)).folder.run_dir is None


def test_a_run_may_have_its_checkpoints_elsewhere(run_dir: Path, tmp_path: Path) -> None:
    elsewhere = override(TINY, [f"checkpoint.folder={tmp_path}/c"])
    (run_dir / "config.toml").write_text(dump_toml(elsewhere))
    small(tmp_path / "c", 7)
    found = find(str(run_dir))
    assert (found.manifest.step, found.folder.run_dir) == (7, str(run_dir))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{run}@3", CheckpointError, r"has no complete checkpoint step-3; it has step-2, step-4"),
        ("{run}/checkpoints/step-3", CheckpointError, r"has no complete checkpoint step-3"),
        ("{run}/checkpoints/step-2@4", ConfigError, r"names two steps"),
        ("{run}/../nowhere", CheckpointError, r"nowhere: holds no complete checkpoint \(looked"),
        ("{run}/../nowhere@1", CheckpointError, r"step-1; it has none"),
        ("nope://x", StorageError, r"not a path that pyarrow\.fs can open"),
    ],
)
def test_what_is_not_there_is_told(
    run_dir: Path, text: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        find(text.format(run=run_dir))


def test_nothing_may_be_there(tmp_path: Path) -> None:
    assert last_good(folder_of(Location.parse(str(tmp_path)))) == (None, [])


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(run_dir: Path) -> None:
    folder = folder_of(Location.parse(str(run_dir)))
    last = run_dir / "checkpoints/step-4"
    file = last / "A0.1.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    found, damages = last_good(folder)
    assert found is not None
    assert found.manifest.step == 2
    size = len(content)
    assert damages == [f"{file}: has {size - 1} bytes, the manifest says {size}"]
    file.unlink()
    assert last_good(folder)[1] == [f"{file}: is missing"]
    (last / "manifest.json").write_text("{")
    (damage,) = last_good(folder)[1]
    assert damage.startswith(f"{last}/manifest.json: is damaged (")


def test_a_run_all_of_whose_checkpoints_are_damaged_does_not_begin_anew(run_dir: Path) -> None:
    for step in (2, 4):
        (run_dir / f"checkpoints/step-{step}/A0.0.safetensors").unlink()
    with pytest.raises(
        CheckpointDamaged, match=r"all its checkpoints are damaged\n.*step-4/A0\.0.*: is missing\n"
    ):
        last_good(folder_of(Location.parse(str(run_dir))))


def test_a_checkpoint_of_another_version_is_no_damage(run_dir: Path) -> None:
    (run_dir / "checkpoints/step-4/manifest.json").write_text('{"format_version": 99}')
    with pytest.raises(CheckpointError, match=r"has format version 99"):
        last_good(folder_of(Location.parse(str(run_dir))))


def test_where_a_run_keeps_its_checkpoints() -> None:
    assert str(run_folder("", "/r")) == "/r/checkpoints"
    assert str(run_folder("/elsewhere", "/r")) == "/elsewhere"
