"""TensorBoard sees each step once, at its own number, also after a resume."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from disagmoe.api.steplogs import StepLogs
from disagmoe.api.tensorboard import check_tensorboard
from disagmoe.config.load import load_run_config
from disagmoe.config.resolve import resolve
from disagmoe.errors import ConfigError
from tests.unit.api.runs import evaluation, step

TINY = Path(__file__).resolve().parents[3] / "configs/tiny.toml"


def part_of_run(folder: Path, steps: range) -> None:
    """Log `steps`, as a run does from its start or from a checkpoint on."""
    config = load_run_config(
        TINY, ["metrics.tensorboard=true", "train.steps=8", "train.eval.every=2"]
    )
    logs = StepLogs(folder, resolve(config, cuda=False))
    for number in steps:
        logs.step(step(number, loss=10.0 + number + len(steps) / 100))
        if number % 2:
            logs.evaluation(evaluation(number))
    logs.close()


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    return [(event.step, round(event.value, 4)) for event in read.Scalars(tag)]


def test_steps_are_those_of_the_run(tmp_path: Path) -> None:
    part_of_run(tmp_path, range(4))
    assert scalars(tmp_path, "loss/training") == [(1, 10.04), (2, 11.04), (3, 12.04), (4, 13.04)]
    assert scalars(tmp_path, "loss/held_out") == [(2, 7.0), (4, 9.0)]
    assert scalars(tmp_path, "utilisation/A0") == [(n, 0.75) for n in (1, 2, 3, 4)]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4


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


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'disagmoe\[tensorboard\]', or use false"):
        check_tensorboard()


def test_no_event_files_unless_asked_for(tmp_path: Path) -> None:
    logs = StepLogs(tmp_path, resolve(load_run_config(TINY, ()), cuda=False))
    logs.step(step(0))
    logs.close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
