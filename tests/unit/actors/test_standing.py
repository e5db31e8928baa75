"""Who keeps whom waiting, in words."""

from dataclasses import replace

from disagmoe.actors.messages import Progress
from disagmoe.actors.standing import Standing, Survey, slowest_line, verdict

COMPUTES = Progress(
    worker="F0.1",
    call="step 7",
    instruction_index=12,
    instruction="experts_fwd L0 m1",
    seconds_since_progress=30.0,
    step=7,
)


def waits(worker: str, *peers: str, since_s: float = 29.0, index: int = 20) -> Progress:
    return replace(
        COMPUTES,
        worker=worker,
        instruction_index=index,
        instruction="wait F0>A0.act L0 m1",
        seconds_since_progress=since_s,
        awaits=peers,
    )


def standings(*progress: Progress, silent: tuple[str, ...] = ()) -> tuple[Standing, ...]:
    known = {"host": "10.0.0.1", "gpu": None, "pid": 5}
    return (
        *(Standing(worker=p.worker, progress=p, **known) for p in progress),  # type: ignore[arg-type]
        *(Standing(worker=w, progress=None, **known) for w in silent),  # type: ignore[arg-type]
    )


def test_the_one_that_computes_keeps_the_others_waiting() -> None:
    found = standings(waits("A0.0", "F0.0", "F0.1"), waits("A0.1", "F0.0", "F0.1"), COMPUTES)
    assert list(verdict(found)) == [
        "A0.0 and A0.1 wait for F0.0 and F0.1",
        "F0.1 keeps the others waiting: step 7, instruction 12 'experts_fwd L0 m1', for 30.0 s",
        "A0.0 has moved last, 29.0 s ago",
    ]


def test_one_that_does_not_answer_is_the_cause() -> None:
    found = standings(waits("A0.0", "F0.1", since_s=3.0), COMPUTES, silent=("F0.0",))
    assert list(verdict(found)) == [
        "A0.0 waits for F0.1",
        "F0.0 does not answer: dead, suspended, or stuck in native code",
        "A0.0 has moved last, 3.0 s ago",
    ]


def test_where_all_wait_the_one_furthest_behind_is_named() -> None:
    found = standings(waits("A0.0", "F0.0"), waits("F0.0", "A0.0", index=4, since_s=40.0))
    assert list(verdict(found)) == [
        "A0.0 waits for F0.0",
        "F0.0 waits for A0.0",
        "all wait for each other; F0.0 is furthest behind: step 7, instruction 4 "
        "'wait F0>A0.act L0 m1', waits for A0.0, for 40.0 s",
        "A0.0 has moved last, 29.0 s ago",
    ]


def test_a_run_in_which_all_compute_has_no_cause() -> None:
    assert list(verdict(standings(COMPUTES))) == ["F0.1 has moved last, 30.0 s ago"]
    assert list(verdict(())) == []


def test_the_slowest_is_named_beside_its_own_group() -> None:
    seconds = {"A0.0": 1.0, "A0.1": 1.1, "F0.0": 0.2, "F0.1": 0.21, "F0.2": 0.4}
    assert slowest_line(seconds) == (
        "slowest over its group's median: F0.2 computes 1.9 times as long (0.400 s, median 0.210 s "
        "in the last step)"
    )
    assert slowest_line({"A0.0": 1.0, "A0.1": 1.1}) == ""
    assert slowest_line({}) == ""


def test_a_survey_says_it_all() -> None:
    survey = Survey(
        standings=standings(COMPUTES, silent=("A0.0",)),
        steps_done=7,
        epoch=1,
        stacks={"F0.1": "thread main"},
    )
    assert list(survey.lines()) == [
        "7 steps done, started again 1 time",
        "  F0.1 on 10.0.0.1: step 7, instruction 12 'experts_fwd L0 m1', for 30.0 s",
        "  A0.0 on 10.0.0.1: does not answer",
        "A0.0 does not answer: dead, suspended, or stuck in native code",
        "F0.1 has moved last, 30.0 s ago",
        "",
        "stacks of F0.1:",
        "thread main",
    ]
    told = survey.to_dict()
    assert (told["steps"], told["slowest"], told["workers"][1]["progress"]) == (7, None, None)
    assert told["workers"][0]["progress"]["instruction"] == "experts_fwd L0 m1"
