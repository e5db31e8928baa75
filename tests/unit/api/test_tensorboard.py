"""TensorBoard sees each step once, at its own number, also after a resume."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from disagmoe.actors.events import RunRestarting
from disagmoe.api.sinks import sinks
from disagmoe.api.tensorboard import TensorBoardLog, check_tensorboard
from disagmoe.config.load import load_run_config
from disagmoe.errors import ConfigError
from tests.unit.api.runs import evaluation, step

TINY = Path(__file__).resolve().parents[3] / "configs/tiny.toml"


def part_of_run(folder: Path, steps: range) -> None:
    """Log `steps`, as a run does from its start or from a checkpoint on."""
    log = TensorBoardLog(folder)
    for number in steps:
        log.observe(step(number, loss=10.0 + number + len(steps) / 100))
        if number % 2:
            log.observe(evaluation(number))
    log.close()


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    return [(event.step, round(event.value, 4)) for event in read.Scalars(tag)]


def test_steps_are_those_of_the_run(tmp_path: Path) -> None:
    part_of_run(tmp_path, range(4))
    assert scalars(tmp_path, "loss/training") == [(1, 10.04), (2, 11.04), (3, 12.04), (4, 13.04)]
    assert scalars(tmp_path, "loss/held_out") == [(2, 7.0), (4, 9.0)]
    assert scalars(tmp_path, "utilisation/A0") == [(n, 0.75) for n in (1, 2, 3, 4)]


def test_a_resumed_run_takes_the_place_of_what_was_lost(tmp_path: Path) -> None:
    part_of_run(tmp_path, range(5))
    part_of_run(tmp_path, range(3, 6))  # from the checkpoint after step 3
    assert scalars(tmp_path, "loss/training") == [
        (1, 10.05),
        (2, 11.05),
        (3, 12.05),
        (4, 13.03),
        (5, 14.03),
        (6, 15.03),
    ]


def test_a_restart_of_workers_takes_the_place_of_what_was_lost(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    for number in range(5):
        log.observe(step(number, loss=1.0))
    failed = RunRestarting(
        epoch=1, cause="died", message="F0.0 died", failures=(), step=3, steps_lost=2, pause_s=1.0
    )
    log.observe(failed)
    for number in range(3, 6):
        log.observe(step(number, loss=2.0))
    log.close()
    assert scalars(tmp_path, "loss/training") == [(n, 1.0) for n in (1, 2, 3)] + [
        (n, 2.0) for n in (4, 5, 6)
    ]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'disagmoe\[tensorboard\]', or use false"):
        check_tensorboard()


@pytest.mark.gloo
@pytest.mark.parametrize("asked", [False, True])
def test_event_files_only_where_they_are_asked_for(asked: bool, tmp_path: Path) -> None:
    config = load_run_config(TINY, [f"metrics.tensorboard={str(asked).lower()}"])
    with sinks(config, tmp_path, "127.0.0.1") as watched:
        assert list(watched([step(0)])) == [step(0)]
    assert (tmp_path / "tensorboard").exists() is asked
