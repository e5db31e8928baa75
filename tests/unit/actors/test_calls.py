"""Order and deadlines of the calls of a run."""

from pathlib import Path

import pytest

from disagmoe.actors.calls import Deadlines, calls, evaluates_after
from disagmoe.actors.messages import Call
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from disagmoe.config.train import EvalConfig, TrainConfig

ROOT = Path(__file__).resolve().parents[3]


def train(steps: int, every: int) -> TrainConfig:
    return TrainConfig(
        steps=steps, global_batch_size=1, sequence_length=1, eval=EvalConfig(every=every)
    )


def text(steps: int, every: int) -> list[str]:
    return [f"{call.kind} {call.step}" for call in calls(train(steps, every), range(steps))]


def test_evaluations_come_between_steps_and_once_at_the_end() -> None:
    assert text(3, 2) == ["step 0", "step 1", "eval 1", "step 2", "eval 2"]
    assert text(2, 2) == ["step 0", "step 1", "eval 1"]
    assert text(2, 5) == ["step 0", "step 1", "eval 1"]
    assert text(2, 0) == ["step 0", "step 1"]


def test_calls_of_a_part_of_the_run_are_those_of_the_whole() -> None:
    whole = list(calls(train(5, 2), range(5)))
    parts = [call for steps in (range(2), range(2, 5)) for call in calls(train(5, 2), steps)]
    assert parts == whole


def test_a_step_is_known_to_be_followed_by_an_evaluation() -> None:
    assert [evaluates_after(step, train(5, 2)) for step in range(5)] == [
        False,
        True,
        False,
        True,
        True,
    ]
    assert not evaluates_after(4, train(5, 0))


def test_only_the_first_step_has_more_time() -> None:
    sets = ["cluster.start_timeout_s=7", "cluster.step_timeout_s=10", "checkpoint.timeout_s=5"]
    config = override(RunConfig.load(ROOT / "configs/tiny.toml"), sets)
    asked = [Call("setup"), Call("step", 0), Call("step", 1), Call("eval", 1), Call("adopt", 1)]
    asked += [Call("restore", 4), Call("step", 4), Call("saved", 4)]
    new, resumed = Deadlines.of(config), Deadlines.of(config, first_step=4)
    assert [new.limit_s(call) for call in asked] == [7, 30, 10, 10, 10, 5, 10, 5]
    assert [resumed.limit_s(call) for call in asked] == [7, 10, 10, 10, 10, 5, 30, 5]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (Call("setup"), "start-up"),
        (Call("step", 3), "step 3"),
        (Call("eval", 3), "evaluation after step 3"),
        (Call("adopt", 3), "change of programs after step 3"),
        (Call("restore", 3), "loading of the checkpoint of 3 steps"),
        (Call("saved", 3), "saving after 3 steps"),
    ],
)
def test_calls_have_names(call: Call, name: str) -> None:
    assert str(call) == name
