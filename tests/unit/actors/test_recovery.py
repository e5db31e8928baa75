"""Whether a run goes on after a failure."""

from dataclasses import replace

import pytest

from disagmoe.actors.messages import FailureKind, WorkerFailure
from disagmoe.actors.recovery import Cause, Fault, GiveUp, Restart, decide, fault_of
from disagmoe.config.recovery import RecoveryConfig

CONFIG = RecoveryConfig(max_failures=2, window_s=100.0, backoff_s=1.0)
FAULT = Fault(cause=Cause.DIED, at_s=0.0, step=3, worker="F0.0", node="n1", message="F0.0 died")


def at(at_s: float, **changes: object) -> Fault:
    return replace(FAULT, **{"at_s": at_s, "node": f"n{at_s}", **changes})  # type: ignore[arg-type]


def test_the_pause_doubles_and_then_the_run_ends() -> None:
    assert decide([at(0)], CONFIG) == Restart(1.0)
    assert decide([at(0), at(10)], CONFIG) == Restart(2.0)
    assert decide([at(0), at(10), at(20)], CONFIG) == GiveUp(
        "not started again: 3 failures within 1 min 40 s (recovery.max_failures = 2)"
    )


def test_a_pause_has_an_end() -> None:
    many = CONFIG.model_copy(update={"max_failures": 99})
    assert decide([at(i) for i in range(50)], many) == Restart(32.0)


def test_failures_of_long_ago_do_not_count() -> None:
    assert decide([at(0), at(10), at(110.5)], CONFIG) == Restart(1.0)


def test_preemptions_do_not_count_and_need_no_pause() -> None:
    history = [at(i, cause=Cause.PREEMPTED) for i in range(9)]
    assert decide(history, CONFIG) == Restart(0.0)
    assert decide([*history, at(9)], CONFIG) == Restart(1.0)


def test_no_failure_is_recovered_from_where_none_is_wanted() -> None:
    assert decide([at(0)], CONFIG.model_copy(update={"max_failures": 0})) == GiveUp("")


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"message": "F0.0: KeyError: 8 at 0x7f2"}, True),
        ({"message": "F0.0: ValueError"}, False),
        ({"step": 4}, False),
        ({"worker": "F0.1"}, False),
        ({"cause": Cause.DIED}, False),
    ],
)
def test_the_same_error_at_the_same_step_twice_ends_the_run(changes: dict, same: bool) -> None:
    first = at(0, cause=Cause.RAISED, message="F0.0: KeyError: 7 at 0x7f1")
    again = replace(first, at_s=1.0, **changes)
    decision = decide([first, again], CONFIG)
    expected = GiveUp("not started again: the same error came at the same step (3) before")
    assert decision == (expected if same else Restart(2.0))


def test_a_node_that_fails_twice_is_left_out() -> None:
    history = [at(0, node="bad"), at(1, node="bad", cause=Cause.SILENT)]
    assert decide(history, CONFIG) == Restart(2.0, frozenset({"bad"}))
    history = [at(0, node="ok", cause=Cause.RAISED), at(1, node="ok", cause=Cause.DIED)]
    assert decide(history, CONFIG) == Restart(2.0)


def failed(worker: str, kind: FailureKind) -> WorkerFailure:
    return WorkerFailure(worker=worker, kind=kind, message=f"{worker} {kind}", at_s=5.0)


@pytest.mark.parametrize(
    ("worker", "kind", "cause", "node"),
    [
        ("F0.0", FailureKind.DIED, Cause.DIED, "n7"),
        ("driver", FailureKind.DIED, Cause.DRIVER, ""),
        ("driver", FailureKind.SILENT, Cause.DRIVER, ""),
        ("driver", FailureKind.RAISED, Cause.RAISED, ""),
    ],
)
def test_the_first_failure_is_the_fault(
    worker: str, kind: FailureKind, cause: Cause, node: str
) -> None:
    failures = [failed(worker, kind), failed("A0.0", FailureKind.TRANSPORT)]
    assert fault_of(failures, 9.0, 4, {"F0.0": "n7"}) == Fault(
        cause=cause, at_s=9.0, step=4, worker=worker, node=node, message=f"{worker} {kind}"
    )
