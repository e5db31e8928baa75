"""The driving loop against a crew without processes."""

from pathlib import Path

import pytest

from disagmoe.actors.drive import QUEUED_CALLS, Drive
from disagmoe.actors.events import EvalResult, Event, RunEnded, RunStarted, StepResult
from disagmoe.actors.inquest import Inquest
from disagmoe.actors.messages import Call, Outcome
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from tests.unit.actors.fakes import FakeClock, FakeCrew, failure, good_outcome, step_report

ROOT = Path(__file__).resolve().parents[3]


def config(*sets: str) -> RunConfig:
    return override(RunConfig.load(ROOT / "configs/tiny.toml"), ["train.steps=4", *sets])


def run(crew: FakeCrew, clock: FakeClock, *sets: str) -> list[Event]:
    inquest = Inquest(lambda text: "stacks.txt", clock)
    return list(Drive(config(*sets), crew, inquest, clock).events())


def test_a_run_to_its_end() -> None:
    clock = FakeClock()
    crew = FakeCrew(clock)
    events = run(crew, clock, "train.eval.every=3")
    assert [type(event) for event in events] == [
        RunStarted,
        StepResult,
        StepResult,
        StepResult,
        EvalResult,
        StepResult,
        EvalResult,
        RunEnded,
    ]
    assert [event.step for event in events if isinstance(event, StepResult)] == [0, 1, 2, 3]
    assert [event.step for event in events if isinstance(event, EvalResult)] == [2, 3]
    assert events[-1] == RunEnded(status="ok")
    assert crew.killed == 1


def test_calls_are_queued_ahead_but_not_too_far() -> None:
    clock = FakeClock()
    crew = FakeCrew(clock)
    run(crew, clock, "train.steps=9")
    assert crew.most_queued == QUEUED_CALLS


def test_a_duration_runs_from_the_end_of_the_call_before() -> None:
    clock = FakeClock()
    events = run(FakeCrew(clock), clock, "train.eval.every=2")
    steps = [event.step_s for event in events if isinstance(event, StepResult)]
    assert steps == [2.0] * 4  # two workers, a second each
    assert [event.elapsed_s for event in events if isinstance(event, EvalResult)] == [2.0, 2.0]


def test_a_stopped_step_is_the_last() -> None:
    def answer(call: Call, worker: str) -> Outcome:
        is_last = call == Call("step", 1)
        return step_report(1, stopped=True) if is_last else good_outcome(call, worker)

    clock = FakeClock()
    crew = FakeCrew(clock, answer)
    events = run(crew, clock)
    assert [event.step for event in events if isinstance(event, StepResult)] == [0, 1]
    assert events[-1] == RunEnded(status="stopped")
    assert crew.killed == 1


@pytest.mark.parametrize("kind", ["setup", "step", "eval"])
def test_a_failure_ends_the_run_with_its_cause_in_front(kind: str) -> None:
    def answer(call: Call, worker: str) -> Outcome:
        if call.kind != kind:
            return good_outcome(call, worker)
        return failure(worker, "died" if worker == "F0.0" else "transport")

    clock = FakeClock()
    crew = FakeCrew(clock, answer)
    events = run(crew, clock, "train.eval.every=4")
    assert events[-1] == RunEnded(
        status="failed", failures=(failure("F0.0", "died"), failure("A0.0", "transport"))
    )
    assert crew.killed == 1


@pytest.mark.parametrize(
    ("call", "limit_s", "name"),
    [
        (Call("setup"), 180, "start-up"),
        (Call("step", 0), 1800, "step 0"),
        (Call("step", 2), 600, "step 2"),
        (Call("eval", 3), 600, "evaluation after step 3"),
    ],
)
def test_a_call_that_is_not_answered_ends_the_run(call: Call, limit_s: int, name: str) -> None:
    def answer(asked: Call, worker: str) -> Outcome | None:
        return None if asked == call and worker == "F0.0" else good_outcome(asked, worker)

    clock = FakeClock()
    crew = FakeCrew(clock, answer)
    events = run(crew, clock, "train.eval.every=4")
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert ended.status == "failed"
    (late,) = ended.failures
    assert late.message.startswith(f"F0.0 has not finished {name} within {limit_s} s; ")
    assert crew.killed == 1
