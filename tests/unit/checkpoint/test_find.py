from pathlib import Path

import pytest

from disagmoe.checkpoint.find import Folder, find, folder_of, latest_if_any, run_folder
from disagmoe.config.load import override
from disagmoe.config.tomlwrite import dump_toml
from disagmoe.errors import CheckpointError, ConfigError, StorageError
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
    assert latest_if_any(folder_of(Location.parse(str(tmp_path)))) is None


def test_where_a_run_keeps_its_checkpoints() -> None:
    assert str(run_folder("", "/r")) == "/r/checkpoints"
    assert str(run_folder("/elsewhere", "/r")) == "/elsewhere"
