"""Parts come in, checkpoints become complete, old ones go."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disagmoe.actors import keeper as keeper_module
from disagmoe.actors.events import CheckpointSaved
from disagmoe.actors.keeper import Keeper
from disagmoe.actors.merge import merge_step
from disagmoe.actors.messages import Call, ResumePoint, Saved
from disagmoe.checkpoint.catalogue import complete_steps, incomplete_steps
from disagmoe.checkpoint.find import find
from disagmoe.checkpoint.manifest import Done
from disagmoe.config.load import override
from disagmoe.data.position import Origin
from disagmoe.errors import CheckpointError
from disagmoe.storage import Location
from tests.unit.actors.fakes import WORKERS, FakeClock, saved_part, step_report
from tests.unit.checkpoint.saved import TINY, small


class Setting:
    """A keeper of two workers in a folder."""

    def __init__(self, folder: Path, *sets: str, resume: ResumePoint | None = None) -> None:
        self.folder = Location.parse(str(folder))
        self.clock = FakeClock()
        config = override(TINY, list(sets))
        self.keeper = Keeper(self.folder, config, "00", resume, self.clock)
        self.keeper.started(WORKERS, {"python": "3"})

    def step(self, number: int) -> None:
        """A step whose state is saved; its loss is 5 minus its number."""
        report = step_report(number, saving=True)
        call = self.keeper.step_done(merge_step(dict.fromkeys(WORKERS, report), 1.0))
        assert call == Call("saved", number + 1)
        (Path(self.folder.path) / f"step-{number + 1}").mkdir(exist_ok=True)

    def write(self, number: int, *workers: str) -> None:
        for worker in workers or WORKERS:
            self.keeper.add(number + 1, Saved(worker, saved_part(worker)))

    def finish(self) -> list[CheckpointSaved]:
        return list(self.keeper.finish())


def point(step: int, place: str = "x") -> ResumePoint:
    done = Done(step=step, updates=step, tokens=100 * step, first_loss=9.0)
    return ResumePoint(place=place, done=done, origin=Origin(step), programs_sha256="00")


def test_one_missing_part_is_no_checkpoint(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.step(0)
    setting.write(0, "A0.0")
    awaited = setting.keeper.awaited()
    assert awaited is not None
    assert (awaited.call, awaited.missing) == (Call("saved", 1), ("F0.0",))
    setting.clock.now_s = 1.0
    later = setting.keeper.awaited()
    assert later is not None
    assert later.left_s == awaited.left_s - 1.0
    assert setting.finish() == []
    assert (complete_steps(setting.folder), incomplete_steps(setting.folder)) == ([], [1])


def test_saves_become_complete_in_any_order_of_parts(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.step(0)
    setting.step(1)
    setting.write(0, "F0.0")
    setting.write(1, "A0.0")
    setting.clock.now_s = 7.0
    setting.write(0, "A0.0")
    setting.write(1, "F0.0")
    first, second = setting.finish()
    assert (first.step, first.elapsed_s, first.problem) == (1, 7.0, "")
    assert first.place == f"{tmp_path}/step-1"
    assert second.step == 2
    assert setting.keeper.awaited() is None


def test_a_step_that_is_not_saved_is_counted_all_the_same(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    report = step_report(0)
    assert setting.keeper.step_done(merge_step(dict.fromkeys(WORKERS, report), 1.0)) is None
    setting.step(1)
    setting.write(1)
    setting.finish()
    assert find(str(tmp_path)).manifest.done == Done(
        step=2, updates=3, tokens=200, first_loss=5.0, last_loss=4.0
    )


def test_the_last_ones_are_kept_and_a_save_under_way_deletes_none(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "checkpoint.keep_last=1")
    setting.step(0)
    setting.write(0)
    setting.step(1)
    setting.write(1, "A0.0")  # its other part never comes
    (saved,) = setting.finish()
    assert saved.deleted == ()
    assert complete_steps(setting.folder) == [1]
    again = Setting(tmp_path, "checkpoint.keep_last=1")
    again.step(2)
    again.write(2)
    (saved,) = again.finish()
    assert saved.deleted == (1,)
    assert complete_steps(again.folder) == [3]


def test_old_ones_that_cannot_be_deleted_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def retain(folder: Location, keep_last: int) -> list[int]:
        raise CheckpointError("step-1: cannot be deleted")

    monkeypatch.setattr(keeper_module, "retain", retain)
    setting = Setting(tmp_path)
    setting.step(0)
    setting.write(0)
    (saved,) = setting.finish()
    assert (saved.deleted, saved.problem) == ((), "step-1: cannot be deleted")
    assert complete_steps(setting.folder) == [1]


def test_a_commit_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = threading.Event()
    original: Callable[..., Any] = keeper_module.commit

    def commit(*arguments: Any, **more: Any) -> Any:
        assert opened.wait(20)
        return original(*arguments, **more)

    monkeypatch.setattr(keeper_module, "commit", commit)
    setting = Setting(tmp_path, "checkpoint.timeout_s=0.05")
    setting.step(0)
    setting.write(0)
    with pytest.raises(CheckpointError, match=r"within checkpoint\.timeout_s = 0\.05 s"):
        setting.finish()
    opened.set()


def test_what_cannot_be_committed_is_told(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.step(0)
    (tmp_path / "step-1").rmdir()
    setting.write(0)
    with pytest.raises(
        CheckpointError, match=r"step-1/manifest\.json: cannot be written \(No such"
    ):
        setting.finish()


def test_an_expert_that_nobody_has_saved_is_told(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.step(0)
    for worker in WORKERS:
        whole = saved_part(worker)
        lacking = tuple(cut for cut in whole.part.slices if ".experts.3." not in cut.name)
        saved = replace(whole, part=replace(whole.part, slices=lacking))
        setting.keeper.add(1, Saved(worker, saved))
    with pytest.raises(
        AssertionError, match=r"^layers\.0\.experts\.3\.\S+ is not saved exactly once: \[\] of "
    ):
        setting.finish()
    assert complete_steps(setting.folder) == []


def test_a_run_begins_with_a_clear_folder(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        small(tmp_path, step)
    (tmp_path / "step-2/manifest.json").unlink()
    setting = Setting(tmp_path, resume=point(4))
    setting.keeper.clear()
    assert setting.folder.names() == ["step-4", "step-6"]
    assert complete_steps(setting.folder) == [4]


def test_a_run_that_goes_on_counts_on(tmp_path: Path) -> None:
    setting = Setting(tmp_path, resume=point(4))
    setting.step(4)
    setting.write(4)
    setting.finish()
    assert find(str(tmp_path)).manifest.done == Done(
        step=5, updates=3, tokens=500, first_loss=9.0, last_loss=1.0
    )
    assert setting.keeper.runs_same_programs
    setting.keeper.goes_on_with(TINY, "11")
    assert not setting.keeper.runs_same_programs
