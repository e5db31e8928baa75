"""What a run adds up to."""

from pathlib import Path

import pytest
import ray

from disagmoe.actors.events import CheckpointSaved, Event, RunEnded, RunRestarting, RunResumed
from disagmoe.actors.messages import FailureKind, WorkerFailure
from disagmoe.api.hops import HopFigures
from disagmoe.api.result import Result
from disagmoe.api.tally import Tally, outcome
from disagmoe.checkpoint.manifest import Done
from disagmoe.errors import PlacementError
from tests.unit.api.runs import SHARES, evaluation, placed, started, step

FAILED = RunEnded(
    status="failed",
    failures=(WorkerFailure(worker="F0.0", kind=FailureKind.DIED, message="F0.0 died", at_s=0),),
)

UNSAVED = RunEnded(
    status="failed",
    failures=(
        WorkerFailure(worker="F0.0", kind=FailureKind.RAISED, message="F0.0 cannot write", at_s=0),
    ),
)


def tally_of(*events: Event) -> Tally:
    tally = Tally()
    for event in events:
        tally.add(event)
    return tally


def result_of(*events: Event) -> Result:
    return tally_of(*events).result(
        "ok", first_error=None, peak_memory_total_bytes=7, elapsed_s=9.0, path=Path("/run")
    )


def test_a_whole_run() -> None:
    events = (
        placed(),
        started(),
        step(0, step_s=50.0),
        step(1, step_s=1.0, skipped="because"),
        evaluation(1),
        step(2, step_s=4.0),
        step(3, step_s=5.0),
        evaluation(3),
        RunEnded(status="ok"),
    )
    assert result_of(*events) == Result(
        status="ok",
        first_step=0,
        steps=4,
        skipped_steps=1,
        first_loss=5.0,
        last_loss=2.0,
        eval_loss=9.0,
        tokens=400,
        tokens_per_s=30.0,  # 300 tokens in 10 s: the first step does not count
        step_s=4.0,
        compute_share={"A0": 0.75, "F0": 0.5},
        shares=SHARES,
        channel_bytes={"A0>F0.act": 66},
        channel_messages={"A0>F0.act": 2},
        hops={
            "inter": HopFigures(rows=152, exact_rows=152, expected_rows=None, nbytes=64),
        },
        mfu=None,
        peak_memory_bytes={"A0.0": 1003, "F0.0": 900},
        peak_memory_total_bytes=7,
        placement={
            "A0.0": {
                "host": "10.0.0.1",
                "node": "a" * 20,
                "pid": 11,
                "gpu": 3,
                "device": "NVIDIA H800",
                "nics": ["mlx5_3", "mlx5_4"],
            },
            "F0.0": {
                "host": "10.0.0.2",
                "node": "b" * 20,
                "pid": 11,
                "gpu": None,
                "device": "cpu",
                "nics": [],
            },
        },
        versions={"python": "3.12.1", "ray": ray.__version__},
        restarts={},
        first_error=None,
        checkpoint=None,
        elapsed_s=9.0,
        path="/run",
    )


def test_a_resumed_run_counts_what_was_before() -> None:
    tally = tally_of(
        started(),
        RunResumed(step=4, place="/c/step-4", elapsed_s=1.0, same_programs=True),
        step(4),
        step(5, skipped="because"),
    )
    tally.before = Done(step=4, updates=3, tokens=1000, first_loss=9.0)
    tally.checkpoint = "/c/step-4"
    result = tally.result(
        "ok", first_error=None, peak_memory_total_bytes=7, elapsed_s=9.0, path=Path("/run")
    )
    assert (result.first_step, result.steps, result.skipped_steps) == (4, 6, 2)
    assert (result.first_loss, result.last_loss, result.tokens) == (9.0, 0.0, 1200)
    assert result.checkpoint == "/c/step-4"
    tally.add(
        CheckpointSaved(
            step=6, place="/c/step-6", size_bytes=1, elapsed_s=1.0, deleted=(), problem=""
        )
    )
    assert tally.checkpoint == "/c/step-6"


def test_a_resume_that_has_nothing_left_to_do_keeps_the_losses() -> None:
    tally = tally_of(started(), RunEnded(status="ok"))
    tally.before = Done(step=4, updates=4, tokens=1000, first_loss=9.0, last_loss=3.0)
    result = tally.result(
        "ok", first_error=None, peak_memory_total_bytes=7, elapsed_s=9.0, path=Path("/run")
    )
    assert (result.steps, result.first_loss, result.last_loss) == (4, 9.0, 3.0)


def test_a_run_of_one_step_counts_the_first() -> None:
    result = result_of(started(), step(0, step_s=4.0))
    assert (result.tokens_per_s, result.step_s) == (25.0, 4.0)


def test_a_run_that_did_not_start_has_no_numbers() -> None:
    result = result_of()
    assert (result.steps, result.tokens) == (0, 0)
    assert [result.first_loss, result.last_loss, result.eval_loss] == [None] * 3
    assert [result.tokens_per_s, result.step_s] == [None] * 2
    assert [result.compute_share, result.peak_memory_bytes, result.placement] == [{}] * 3
    assert [result.shares, result.channel_bytes, result.channel_messages, result.hops] == [{}] * 4


@pytest.mark.parametrize(
    ("events", "raised", "expected"),
    [
        ([RunEnded(status="ok")], None, ("ok", None)),
        ([RunEnded(status="stopped")], None, ("stopped", None)),
        ([FAILED], None, ("failed", "F0.0 died")),
        ([FAILED], KeyboardInterrupt(), ("stopped", None)),
        ([UNSAVED], KeyboardInterrupt(), ("stopped", "F0.0 cannot write")),
        ([], SystemExit(143), ("stopped", None)),
        ([], PlacementError("no room"), ("failed", "no room")),
        ([], ValueError("in a callback"), ("failed", "ValueError: in a callback")),
        ([], None, ("failed", "the run has ended without an outcome")),
    ],
)
def test_outcomes(
    events: list[Event], raised: BaseException | None, expected: tuple[str, str | None]
) -> None:
    assert outcome(tally_of(*events), raised) == expected


def test_what_is_done_again_counts_once() -> None:
    restarting = RunRestarting(
        epoch=1, cause="died", message="", failures=(), step=1, steps_lost=2, pause_s=0.0
    )
    events = [started(), step(0), step(1), evaluation(1), step(2), restarting, step(1), step(2)]
    result = result_of(*events)
    assert (result.steps, result.tokens, result.eval_loss) == (3, 300, None)
    assert result.restarts == {"died": 1}
