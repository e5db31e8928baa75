"""Which checkpoint a run goes on from, where, and with which config."""

from collections.abc import Callable
from pathlib import Path

import pytest

from disagmoe.actors.startup import open_data
from disagmoe.api.preflight import preflight
from disagmoe.api.resume import Resume, continued, find_resume, saved_config
from disagmoe.checkpoint.changes import thawed
from disagmoe.checkpoint.find import Found, find
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from disagmoe.data.prepared import PreparedData
from disagmoe.errors import CheckpointError, ConfigError
from disagmoe.storage import Location
from tests.unit.checkpoint.saved import TINY, saved, saved_run, small, values
from tests.unit.data.conftest import in_process, make_data, prepare_here

__all__ = ["in_process", "make_data", "prepare_here"]  # fixtures


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that has saved after steps 2 and 4."""
    return saved_run(tmp_path / "run")


def where(resume: Resume) -> tuple[int | None, Path | None]:
    """The step, and the directory of the run that goes on in it."""
    return (resume.found.manifest.step if resume.found else None), resume.run_dir


def test_a_run_goes_on_in_its_directory_and_a_branch_in_another(
    run_dir: Path, tmp_path: Path
) -> None:
    for own in (None, run_dir, run_dir / "../run"):
        assert where(find_resume(str(run_dir), own, TINY)) == (4, run_dir)
        assert where(find_resume(f"{run_dir}@2", own, TINY)) == (2, run_dir)
        assert where(find_resume(f"{run_dir}/checkpoints/step-2", own, TINY)) == (2, run_dir)
    assert where(find_resume(f"{run_dir}@2", tmp_path / "branch", TINY)) == (2, None)
    small(tmp_path / "apart", 7)
    assert where(find_resume(str(tmp_path / "apart"), None, TINY)) == (7, None)


def test_auto_takes_the_last_of_the_run_or_begins_anew(run_dir: Path, tmp_path: Path) -> None:
    assert where(find_resume("auto", run_dir, TINY)) == (4, run_dir)
    (run_dir / "checkpoints/step-4/manifest.json").unlink()  # the save was cut short
    assert where(find_resume("auto", run_dir, TINY)) == (2, run_dir)
    (run_dir / "checkpoints/step-2/manifest.json").unlink()
    assert where(find_resume("auto", run_dir, TINY)) == (None, run_dir)
    assert where(find_resume("auto", tmp_path / "new", TINY)) == (None, None)


def test_auto_goes_on_from_the_one_before_a_damaged_checkpoint_and_says_so(run_dir: Path) -> None:
    file = run_dir / "checkpoints/step-4/A0.1.safetensors"
    file.unlink()
    resume = find_resume("auto", run_dir, TINY)
    assert where(resume) == (2, run_dir)
    assert resume.news == (
        f"DAMAGED CHECKPOINT: {file}: is missing",
        f"goes on from the last one that is whole, {run_dir}/checkpoints/step-2, instead",
    )


def test_auto_may_find_the_folder_that_the_config_names(tmp_path: Path) -> None:
    config = override(TINY, [f"checkpoint.folder={tmp_path}/c"])
    assert where(find_resume("auto", None, config)) == (None, None)
    small(tmp_path / "c", 3)
    for own in (None, tmp_path / "new"):
        assert where(find_resume("auto", own, config)) == (3, None)


def test_auto_has_to_know_where_to_look() -> None:
    with pytest.raises(ConfigError, match=r"--resume auto looks for checkpoints in the run direct"):
        find_resume("auto", None, TINY)
    with pytest.raises(ConfigError, match=r"--resume auto may find no checkpoint .* give --config"):
        saved_config("auto")


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere: holds no complete checkpoint"):
        find_resume(str(tmp_path / "nowhere"), None, TINY)


@pytest.fixture
def config(make_data: Callable[[list[str]], PreparedData]) -> RunConfig:
    """Resolved, on data of its own."""
    data = make_data([f"text {i}" * 5 for i in range(9)])
    sets = ["model.vocab_size=257", "train.steps=20", f'data.paths=["{data.path}"]']
    resolved = preflight(override(TINY, sets))
    found = ["parallel.profile=off", "parallel.costs.rows=0.125", "parallel.in_flight=2"]
    return override(resolved, found)


@pytest.fixture
def found(config: RunConfig, tmp_path: Path) -> Found:
    """A checkpoint of it after 5 steps."""
    data = open_data(config).position(5).model_dump()
    saved(tmp_path / "c", values({"a": (3,)}), [{"a": [(0, 3)]}], step=5, config=config, data=data)
    return find(str(tmp_path / "c"))


def folder_of(found: Found) -> Location:
    return found.folder.place


def test_the_same_config_goes_on_with_the_same_programs(config: RunConfig, found: Found) -> None:
    assert saved_config(str(found.place)) == thawed(config)
    for asked in (config, thawed(config)):
        resolved, point, news = continued(asked, found, folder_of(found))
        assert (resolved, news) == (config, [])
        assert (point.place, point.done) == (str(found.place), found.manifest.done)
        assert (point.origin.step, point.origin.mixed) == (5, 35)
        assert point.programs_sha256 == "00"


def test_every_difference_is_said(config: RunConfig, found: Found) -> None:
    small(Path(folder_of(found).path), 8)
    asked = override(thawed(config), ["train.steps=40", "train.optimizer.lr=0.5"])
    _, _, news = continued(asked, found, folder_of(found))
    assert news == [
        "train.steps: 20 -> 40",
        "train.optimizer.lr: 0.001 -> 0.5",
        "checkpoints after step 5 are set aside: step-8 (rename their manifest.set-aside.json to "
        "manifest.json to have them back)",
    ]


def test_a_rest_that_is_too_short_is_not_measured(config: RunConfig, found: Found) -> None:
    for steps, profile in ((8, "off"), (9, "on")):
        asked = override(
            thawed(config), [f"train.steps={steps}", "parallel.groups=2", "parallel.profile=on"]
        )
        assert continued(asked, found, folder_of(found))[0].parallel.profile == profile


def test_a_run_that_is_shorter_than_its_checkpoint_is_refused(
    config: RunConfig, found: Found
) -> None:
    asked = override(config, ["train.steps=4"])
    with pytest.raises(
        ConfigError, match=r"train\.steps = 4, but .*step-5 has 5 steps; use 5 or mor"
    ):
        continued(asked, found, folder_of(found))


def test_another_model_is_refused(config: RunConfig, found: Found) -> None:
    with pytest.raises(
        ConfigError, match=r"another model: model\.experts = 7 there, 8 here; leave"
    ):
        continued(override(config, ["model.experts=8"]), found, folder_of(found))


def test_missing_and_cut_files_are_refused_before_anything_starts(
    config: RunConfig, found: Found
) -> None:
    file = Path(found.place.path) / "A0.0.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"A0\.0\.safetensors: has \d+ bytes, the manifest"):
        continued(config, found, folder_of(found))
    file.unlink()
    with pytest.raises(CheckpointError, match=r"A0\.0\.safetensors: is missing\nrestore the file"):
        continued(config, found, folder_of(found))
