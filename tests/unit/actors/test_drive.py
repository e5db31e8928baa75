"""The driving loop against a crew without processes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from disagmoe.actors.crew import Reply
from disagmoe.actors.drive import QUEUED_CALLS, Drive, Retune, Settle, Traces
from disagmoe.actors.events import (
    CheckpointSaved,
    EvalResult,
    Event,
    RunEnded,
    RunPlaced,
    RunResumed,
    RunStarted,
    ScheduleTuned,
    StepResult,
    StepTraced,
)
from disagmoe.actors.inquest import Inquest
from disagmoe.actors.keeper import Keeper
from disagmoe.actors.messages import (
    Call,
    FailureKind,
    Located,
    Outcome,
    ResumePoint,
    WorkerAssignment,
)
from disagmoe.checkpoint.catalogue import complete_steps
from disagmoe.checkpoint.find import find
from disagmoe.checkpoint.manifest import Done
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from disagmoe.data.position import Origin
from disagmoe.errors import PlacementError
from disagmoe.runtime.trace import WorkerTrace
from disagmoe.storage import Location
from tests.unit.actors.fakes import FakeClock, FakeCrew, failure, good_outcome, step_report

ROOT = Path(__file__).resolve().parents[3]


def config(*sets: str) -> RunConfig:
    return override(RunConfig.load(ROOT / "configs/tiny.toml"), ["train.steps=4", *sets])


def no_retune(steps: Sequence[Traces]) -> Any:
    raise AssertionError("nothing was profiled")


PLACED = RunPlaced(seats=())
PLACES = [cast(WorkerAssignment, object())]


def settle(located: Mapping[str, Located]) -> tuple[RunPlaced, Sequence[WorkerAssignment]]:
    assert list(located) == ["A0.0", "F0.0"]
    return PLACED, PLACES


def run(crew: FakeCrew, clock: FakeClock, *sets: str) -> list[Event]:
    return list(drive(crew, clock, *sets).events())


def drive(
    crew: FakeCrew,
    clock: FakeClock,
    *sets: str,
    settle: Settle = settle,
    retune: Retune = no_retune,
    keeper: Keeper | None = None,
) -> Drive:
    inquest = Inquest(lambda text: "stacks.txt", clock)
    settings = config(*sets)
    keeper = keeper or Keeper(Location.parse("/nowhere"), settings, "00", now=clock)
    return Drive(settings, crew, inquest, settle, retune, keeper, clock)


def test_a_run_to_its_end() -> None:
    clock = FakeClock()
    crew = FakeCrew(clock)
    events = run(crew, clock, "train.eval.every=3")
    assert [type(event) for event in events] == [
        RunPlaced,
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


PROFILED = ("parallel.profile=on", "train.steps=6")
TUNED = ScheduleTuned(
    config=config("parallel.costs.rows=0.125"),
    seconds={},
    expert_shares=[],
    planned_s=1.0,
    gap=1.0,
    programs_sha256="11",
)
ASSIGNMENTS = [cast(WorkerAssignment, object())]


def traced(call: Call, worker: str) -> Outcome:
    """Every step has a trace."""
    outcome = good_outcome(call, worker)
    is_step = call.kind == "step"
    return replace(outcome, trace=WorkerTrace(call.step, (), ())) if is_step else outcome  # type: ignore[type-var]


def test_programs_change_between_steps_and_after_all_calls_before() -> None:
    clock = FakeClock()
    crew = FakeCrew(clock, traced)
    seen: list[Sequence[Traces]] = []

    def retune(steps: Sequence[Traces]) -> tuple[ScheduleTuned, Sequence[WorkerAssignment]]:
        seen.append(list(steps))
        clock.now_s += 50  # compiling
        return TUNED, ASSIGNMENTS

    sets = (*PROFILED, "train.eval.every=3", "trace.first_step=2", "trace.steps=2")
    events = list(drive(crew, clock, *sets, retune=retune).events())
    assert [str(call) for call in crew.started] == [
        "placement",
        "start-up",
        "step 0",
        "step 1",
        "step 2",
        "evaluation after step 2",
        "change of programs after step 2",
        "step 3",
        "step 4",
        "step 5",
        "evaluation after step 5",
    ]
    assert crew.assigned == [PLACES, ASSIGNMENTS]
    traces = [{w: WorkerTrace(step, (), ()) for w in crew.workers} for step in range(4)]
    assert seen == [traces[1:3]]
    assert [e for e in events if isinstance(e, StepTraced)] == [
        StepTraced(traces=each) for each in traces[2:4]
    ]
    kinds = [type(event) for event in events]
    at = kinds.index(ScheduleTuned)
    assert events[at] == TUNED
    assert kinds[at - 1 : at + 2] == [EvalResult, ScheduleTuned, StepResult]
    assert {event.step_s for event in events if isinstance(event, StepResult)} == {2.0}
    assert events[-1] == RunEnded(status="ok")


def test_a_run_that_is_stopped_while_it_is_measured_changes_nothing() -> None:
    def answer(call: Call, worker: str) -> Outcome:
        is_last = call == Call("step", 2)
        return step_report(2, stopped=True) if is_last else traced(call, worker)

    clock = FakeClock()
    crew = FakeCrew(clock, answer)
    events = run(crew, clock, *PROFILED)
    assert [event.step for event in events if isinstance(event, StepResult)] == [0, 1, 2]
    assert events[-1] == RunEnded(status="stopped")


def test_a_worker_that_cannot_change_its_programs_ends_the_run() -> None:
    def answer(call: Call, worker: str) -> Outcome:
        refuses = call.kind == "adopt" and worker == "F0.0"
        return failure(worker, "raised") if refuses else traced(call, worker)

    clock = FakeClock()
    crew = FakeCrew(clock, answer)
    change = drive(crew, clock, *PROFILED, retune=lambda steps: (TUNED, ASSIGNMENTS))
    assert list(change.events())[-1] == RunEnded(
        status="failed", failures=(failure("F0.0", "raised"),)
    )


def test_workers_that_are_in_the_wrong_place_end_the_run() -> None:
    def refuse(located: Mapping[str, Located]) -> Any:
        raise PlacementError("F0.0 on 10.0.0.2 (node 1) sees 0 GPUs\nF0.1 too")

    clock = FakeClock()
    crew = FakeCrew(clock)
    (ended,) = drive(crew, clock, settle=refuse).events()
    assert isinstance(ended, RunEnded)
    (found,) = ended.failures
    assert (found.worker, found.kind) == ("F0.0", FailureKind.UNFIT)
    assert found.message == "F0.0 on 10.0.0.2 (node 1) sees 0 GPUs\nF0.1 too"
    assert crew.killed == 1


@pytest.mark.parametrize("kind", ["locate", "setup", "step", "eval"])
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


def test_a_death_that_arrives_with_what_follows_from_it_is_the_cause() -> None:
    clock = FakeClock()
    crew = FakeCrew(clock, lambda call, _: None)
    together = [
        Reply(Call("locate"), "A0.0", failure("A0.0", "transport")),
        Reply(Call("locate"), "F0.0", failure("F0.0", "died")),
    ]
    polls = iter([together])
    later = crew.poll
    crew.poll = lambda timeout_s: next(polls, None) or later(timeout_s)
    (ended,) = run(crew, clock)
    assert ended == RunEnded(
        status="failed", failures=(failure("F0.0", "died"), failure("A0.0", "transport"))
    )


def test_a_step_that_is_done_counts_though_a_failure_comes_with_its_last_answer() -> None:
    """The same error at the same step is told by the steps that were done before it."""
    clock = FakeClock()

    def answer(call: Call, worker: str) -> Outcome | None:
        return None if call.kind == "step" else good_outcome(call, worker)

    crew = FakeCrew(clock, answer)
    first, second = Call("step", 0), Call("step", 1)
    done = [Reply(first, name, step_report(first.step)) for name in ("A0.0", "F0.0")]
    together = [done[0], Reply(second, "A0.0", failure("A0.0", "raised")), done[1]]
    earlier, polls = crew.poll, iter([together])

    def poll(timeout_s: float) -> list[Reply]:
        return earlier(timeout_s) or next(polls, [])

    crew.poll = poll
    *_, step, ended = run(crew, clock)
    assert isinstance(step, StepResult)
    assert step.step == 0
    assert ended == RunEnded(status="failed", failures=(failure("A0.0", "raised"),))


@pytest.mark.parametrize(
    ("call", "limit_s", "name"),
    [
        (Call("locate"), 180, "placement"),
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


def saving(*steps: int, stopped: int = -1) -> Callable[[Call, str], Outcome]:
    """Save after `steps`, and stop after one of them."""

    def answer(call: Call, worker: str) -> Outcome:
        if call.kind == "step" and call.step in steps:
            return step_report(call.step, saving=True, stopped=call.step == stopped)
        return good_outcome(call, worker)

    return answer


def keeper_of(folder: Path, clock: FakeClock, resume: ResumePoint | None = None) -> Keeper:
    for step in range(1, 6):  # as the workers would
        (folder / f"step-{step}").mkdir()
    return Keeper(Location.parse(str(folder)), config(), "00", resume, clock)


def point(step: int, programs: str = "00") -> ResumePoint:
    done = Done(step=step, updates=step, tokens=100 * step, first_loss=9.0)
    return ResumePoint(
        place=f"/c/step-{step}", done=done, origin=Origin(step), programs_sha256=programs
    )


def test_a_checkpoint_is_complete_once_all_parts_are(tmp_path: Path) -> None:
    clock = FakeClock()
    crew = FakeCrew(clock, saving(1, 3))
    events = list(drive(crew, clock, keeper=keeper_of(tmp_path, clock)).events())
    saved = [event for event in events if isinstance(event, CheckpointSaved)]
    assert [event.step for event in saved] == [2, 4]
    assert [event.place for event in saved] == [f"{tmp_path}/step-2", f"{tmp_path}/step-4"]
    assert [call.step for call in crew.started if call.kind == "saved"] == [2, 4]
    assert events[-1] == RunEnded(status="ok")
    assert events.index(saved[0]) > events.index(step_result(events, 1))
    manifest = find(f"{tmp_path}@2").manifest
    assert manifest.done == Done(step=2, updates=3, tokens=200, first_loss=5.0, last_loss=4.0)
    assert (manifest.data["mixed"], manifest.programs_sha256) == (8, "00")
    assert [file.worker for file in manifest.files] == list(crew.workers)
    assert manifest.versions == {"python": "3"}


def step_result(events: list[Event], step: int) -> StepResult:
    return next(event for event in events if isinstance(event, StepResult) and event.step == step)


def test_a_stopped_run_ends_once_it_is_saved(tmp_path: Path) -> None:
    clock = FakeClock()
    crew = FakeCrew(clock, saving(1, stopped=1))
    events = list(drive(crew, clock, keeper=keeper_of(tmp_path, clock)).events())
    assert [type(event) for event in events[-2:]] == [CheckpointSaved, RunEnded]
    assert events[-1] == RunEnded(status="stopped")
    assert complete_steps(Location.parse(str(tmp_path))) == [2]


def test_a_worker_that_cannot_save_ends_the_run_and_nothing_is_complete(tmp_path: Path) -> None:
    def answer(call: Call, worker: str) -> Outcome:
        fails = call.kind == "saved" and worker == "F0.0"
        return failure(worker, "raised") if fails else saving(1)(call, worker)

    clock = FakeClock()
    crew = FakeCrew(clock, answer)
    events = list(drive(crew, clock, keeper=keeper_of(tmp_path, clock)).events())
    assert events[-1] == RunEnded(status="failed", failures=(failure("F0.0", "raised"),))
    assert complete_steps(Location.parse(str(tmp_path))) == []
    assert crew.killed == 1


@pytest.mark.parametrize("at", [1, 3])
def test_a_save_that_takes_too_long_ends_the_run(tmp_path: Path, at: int) -> None:
    def answer(call: Call, worker: str) -> Outcome | None:
        hangs = call.kind == "saved" and worker == "F0.0"
        later = call.kind == "step" and call.step > at
        return None if hangs or later else saving(at)(call, worker)

    clock = FakeClock()
    crew = FakeCrew(clock, answer)
    sets = ("cluster.step_timeout_s=5000",)
    events = list(drive(crew, clock, *sets, keeper=keeper_of(tmp_path, clock)).events())
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    (late,) = ended.failures
    number = at + 1
    assert late.message.startswith(f"F0.0 has not finished saving after {number} steps within 1800")


def test_a_manifest_that_cannot_be_written_ends_the_run(tmp_path: Path) -> None:
    clock = FakeClock()
    crew = FakeCrew(clock, saving(1))
    keeper = keeper_of(tmp_path, clock)
    (tmp_path / "step-2").rmdir()
    events = list(drive(crew, clock, keeper=keeper).events())
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert ended.failures[0].message.startswith(f"driver: {tmp_path}/step-2/manifest.json: cannot")
    assert crew.killed == 1


def test_a_resumed_run_loads_and_goes_on_where_it_was(tmp_path: Path) -> None:
    clock = FakeClock()
    crew = FakeCrew(clock, saving(3))
    keeper = keeper_of(tmp_path, clock, point(2))
    events = list(drive(crew, clock, "train.eval.every=1", keeper=keeper).events())
    assert [str(call) for call in crew.started] == [
        "placement",
        "start-up",
        "loading of the checkpoint of 2 steps",
        "step 2",
        "evaluation after step 2",
        "step 3",
        "evaluation after step 3",
        "saving after 4 steps",
    ]
    assert events[2] == RunResumed(step=2, place="/c/step-2", elapsed_s=2.0, same_programs=True)
    assert find(str(tmp_path)).manifest.done == Done(
        step=4, updates=3, tokens=400, first_loss=9.0, last_loss=2.0
    )


def test_a_resumed_run_measures_what_is_not_known_yet(tmp_path: Path) -> None:
    clock = FakeClock()
    crew = FakeCrew(clock, traced)
    keeper = keeper_of(tmp_path, clock, point(1, "other"))
    seen: list[list[int]] = []

    def retune(steps: Sequence[Traces]) -> tuple[ScheduleTuned, Sequence[WorkerAssignment]]:
        seen.append([traces["A0.0"].step for traces in steps])
        return TUNED, ASSIGNMENTS

    events = list(drive(crew, clock, *PROFILED, retune=retune, keeper=keeper).events())
    assert seen == [[2, 3]]
    assert events[2] == RunResumed(step=1, place="/c/step-1", elapsed_s=2.0, same_programs=False)


def test_a_checkpoint_holds_what_was_measured(tmp_path: Path) -> None:
    def answer(call: Call, worker: str) -> Outcome:
        outcome = traced(call, worker)
        return replace(outcome, saving=call.step in (1, 4)) if call.kind == "step" else outcome  # type: ignore[type-var]

    clock = FakeClock()
    crew = FakeCrew(clock, answer)
    keeper = keeper_of(tmp_path, clock)
    list(
        drive(crew, clock, *PROFILED, retune=lambda s: (TUNED, ASSIGNMENTS), keeper=keeper).events()
    )
    before, after = find(f"{tmp_path}@2").manifest, find(f"{tmp_path}@5").manifest
    assert (before.run_config(), before.programs_sha256) == (config(), "00")
    assert (after.run_config(), after.programs_sha256) == (TUNED.config, "11")
