"""Whether a run has said what a fault was, and what is wrong with a drill."""

from typing import Any

import pytest

from disagmoe.actors.injector import Injection
from disagmoe.bench.outcomes import HEADER, Drill, Outcome, is_blamed, judged, line_of, missed


def fault(**changes: Any) -> Injection:
    given = {"number": 3, "kind": "kill", "phase": "forward", "worker": "A0.0", "step": 2}
    return Injection(**{**given, **changes})


def outcome(**changes: Any) -> Outcome:
    given = {
        "fault": fault(),
        "detect_s": 1.0,
        "resume_s": 2.0,
        "steps_lost": 1,
        "recovered": True,
        "message": "",
        "checkpoint": 3,
    }
    return Outcome(**{**given, **changes})


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("kill", "A0.0 died: its process is gone"),
        ("freeze", "A0.0 has answered nothing for 5 s"),
        ("exception", "A0.0 failed at instruction 3: RuntimeError: drill: fault 3"),
        ("memory", "A0.0 failed at instruction 3\nout of memory; this process has held"),
        ("full disk", "A0.0 cannot write its 3 B of a checkpoint to /c"),
        ("driver", "the driver has died: killed"),
    ],
)
def test_a_fault_is_told_by_its_worker_and_kind(kind: Any, message: str) -> None:
    assert is_blamed(fault(kind=kind), message)
    assert not is_blamed(fault(kind=kind), "F0.1: the transfer failed")
    assert not is_blamed(fault(kind="nan"), message)


@pytest.mark.parametrize(
    ("outcomes", "leaks", "hangs", "recovered", "good"),
    [
        ([outcome()], (), 0, 1, True),
        ([outcome(), outcome(recovered=False)], (), 0, 1, False),
        ([outcome(detect_s=None, recovered=False)], (), 1, 0, False),
        ([outcome(detect_s=31.0)], (), 1, 1, False),
        ([outcome()], ("1: ray",), 0, 1, False),
    ],
)
def test_what_is_wrong_with_a_drill(
    outcomes: list[Outcome], leaks: tuple[str, ...], hangs: int, recovered: int, good: bool
) -> None:
    found = Drill(
        seed=0,
        outcomes=tuple(outcomes),
        truthful_errors=1,
        leaks=leaks,
        bit_equal=True,
        elapsed_s=1.0,
    )
    assert (found.hangs, found.recovered, found.good) == (hangs, recovered, good)
    told = found.to_dict()
    assert (told["faults"], told["leaks"]) == (len(outcomes) + 1, len(leaks))


@pytest.mark.parametrize(
    ("changes", "disturbed", "equal"),
    [
        ({}, {3: {"a": "1"}, 6: {"a": "3"}}, True),
        ({"checkpoint": 6}, {3: {"a": "1"}, 6: {"a": "3"}}, False),
        ({}, {6: {"a": "2"}}, False),
        ({"checkpoint": 9}, {9: {"a": "2"}}, False),
        ({"checkpoint": None}, {3: {"a": "1"}}, False),
    ],
    ids=["equal", "other bits", "not saved", "nothing to compare with", "missed"],
)
def test_the_state_after_a_fault_is_that_of_the_first_checkpoint_after_it(
    changes: dict[str, Any], disturbed: dict[int, dict[str, str]], equal: bool
) -> None:
    undisturbed = {3: {"a": "1"}, 6: {"a": "2"}}
    assert judged(outcome(**changes), undisturbed, disturbed).state_equal is equal


def test_the_table() -> None:
    found = [outcome(state_equal=True, message="A0.0 died"), missed(fault(kind="full disk"))]
    assert [HEADER, *map(line_of, found)] == [
        "  # fault      worker phase      step  detected  resumed  lost  state  what the run said "
        "of it",
        "  4 kill       A0.0   forward       2     1.0 s    2.0 s     1  equal  A0.0 died",
        "  4 full disk  A0.0   forward       2         -        -     0  other  not noticed",
    ]
