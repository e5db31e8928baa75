"""A save copies at once and writes later; one at a time."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from disagmoe.checkpoint.part import Part
from disagmoe.config.run import RunConfig
from disagmoe.data.source import FixedSource
from disagmoe.errors import CheckpointError
from disagmoe.runtime import saving
from disagmoe.runtime.saving import SavedPart, Timer
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.runtime.threads import ThreadedRun
from disagmoe.schedule.layout import Worker
from disagmoe.storage import Location
from tests.unit.runtime.tiny import batch_of, tiny, values_of


def run_of(config: RunConfig, folder: Path, steps: int = 6) -> ThreadedRun:
    batches = [batch_of(config, seed) for seed in range(steps)]
    place = Location.parse(str(folder))
    return ThreadedRun(config, FixedSource(batches), checkpoints=place, timeout_s=20.0)


def step(run: ThreadedRun, number: int) -> dict[Worker, Any]:
    return run.each(lambda runtime: runtime.run_step(number))


def written(run: ThreadedRun, done: int) -> dict[Worker, SavedPart]:
    return run.each(lambda runtime: runtime.saved(done))


class Gate:
    """Holds back the writing of all files until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        original = saving.write_part

        def write(*arguments: Any) -> Part:
            assert self.opened.wait(20)
            return original(*arguments)

        monkeypatch.setattr(saving, "write_part", write)


def test_files_hold_the_values_of_the_save_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on for five steps before anything is written."""
    gate = Gate(monkeypatch)
    config = tiny(train__precision="bf16", checkpoint__interval_steps=6, train__steps=100)
    run = run_of(config, tmp_path, steps=11)
    assert {report.saving for report in step(run, 5).values()} == {True}
    values = values_of(run)
    for number in range(6, 11):
        assert not any(report.saving for report in step(run, number).values())
    assert list(tmp_path.iterdir()) == []
    gate.opened.set()
    parts = written(run, 6)
    run.close()
    for worker, part in parts.items():
        stored = load_file(tmp_path / "step-6" / part.part.file.name)
        for cut in part.part.slices:
            flat = values[worker][cut.name].flatten()[cut.start : cut.stop]
            assert torch.equal(stored[f"weight/{cut.name}"].flatten(), flat)
            master = stored[f"master/{cut.name}"].flatten()
            assert torch.equal(master.bfloat16(), flat)
            assert stored[f"exp_avg/{cut.name}"].dtype is torch.float32
    assert {part.updates for part in parts.values()} == {1}
    positions = {str(worker): part.data for worker, part in parts.items()}
    assert positions["F0.0"] is None
    assert positions["A0.0"] is not None
    assert positions["A0.0"].mixed == 6


def test_a_save_waits_for_the_one_before_and_the_wait_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    config = tiny(checkpoint__interval_steps=1, train__steps=3)
    run = run_of(config, tmp_path)
    first = step(run, 0)
    threading.Timer(0.3, gate.opened.set).start()
    second = step(run, 1)
    for report in first.values():
        assert report.saving
        assert 0 < report.seconds["checkpoint"] < 0.2
    for report in second.values():
        assert report.seconds["checkpoint"] > 0.2
    assert written(run, 1).keys() == written(run, 2).keys() == run.workers.keys()
    run.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-2"]


@pytest.mark.parametrize("asked", [True, False])
def test_a_save_that_fails_is_told_when_asked_or_by_the_next(tmp_path: Path, asked: bool) -> None:
    (tmp_path / "step-1").write_text("a file")
    config = tiny(checkpoint__interval_steps=1, train__steps=3)
    run = run_of(config, tmp_path)
    step(run, 0)
    with pytest.raises(CheckpointError, match=r"cannot write its .*step-1/.*: File exists; free"):
        written(run, 1) if asked else step(run, 1)
    run.close()


def test_storage_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    config = tiny(checkpoint__interval_steps=1, checkpoint__timeout_s=0.05, train__steps=3)
    run = run_of(config, tmp_path)
    step(run, 0)
    with pytest.raises(CheckpointError, match=r"has not written its part .*timeout_s = 0\.05 s "):
        written(run, 1)
    gate.opened.set()
    run.close()


@pytest.mark.parametrize(
    ("sets", "saved"),
    [
        ({"checkpoint__interval_steps": 2}, [2, 4]),
        ({"checkpoint__interval_steps": 3}, [3, 4]),
        ({"checkpoint__interval_steps": 3, "checkpoint__at_end": False}, [3]),
        ({}, [4]),
        ({"checkpoint__at_end": False}, []),
        ({"checkpoint__at_end": False, "checkpoint__interval_s": 1e-9}, [1, 2, 3, 4]),
    ],
)
def test_steps_that_are_saved(tmp_path: Path, sets: dict[str, object], saved: list[int]) -> None:
    config = tiny(**sets, train__steps=4)
    run = run_of(config, tmp_path)
    found = [n + 1 for n in range(4) if all(report.saving for report in step(run, n).values())]
    run.close()
    assert found == saved


@pytest.mark.parametrize("on_stop", [True, False])
def test_a_stopped_run_saves_its_last_step(tmp_path: Path, on_stop: bool) -> None:
    config = tiny(train__steps=100, checkpoint__on_stop=on_stop)
    run = run_of(config, tmp_path)
    run.workers[Worker.parse("F0.0")].request_stop()
    reports = step(run, 0)
    run.close()
    assert {(report.stopped, report.saving) for report in reports.values()} == {(True, on_stop)}


def test_without_a_folder_nothing_is_saved() -> None:
    config = tiny(train__steps=1)
    run = ThreadedRun(config, FixedSource([batch_of(config)]), timeout_s=20.0)
    assert not any(report.saving for report in step(run, 0).values())
    with pytest.raises(AssertionError):
        run.each(lambda runtime: WorkerRuntime.saved(runtime, 1))
    run.close()


def test_time_passes_from_save_to_save() -> None:
    now = 0.0
    timer = Timer(10.0, lambda: now)
    assert not timer.is_due()
    now = 10.0
    assert timer.is_due()
    timer.restart()
    assert not timer.is_due()
    assert not Timer(0.0, lambda: now).is_due()
