"""Who failed first, asked before the workers are killed."""

from collections.abc import Mapping

from disagmoe.actors.inquest import Inquest, describe_failures
from disagmoe.actors.messages import Call, FailureKind, Outcome, Progress
from tests.unit.actors.fakes import FakeClock, FakeCrew, failure

WORKERS = ("A0.0", "A0.1", "F0.0")


def crew_of(clock: FakeClock, outcomes: dict[str, Outcome], silent: tuple = ()) -> FakeCrew:
    """A crew whose workers answer one call with `outcomes`, in that order."""
    crew = FakeCrew(clock, lambda _, worker: outcomes.get(worker), WORKERS, silent)
    crew.start(Call("step", 1))
    return crew


def test_it_waits_for_the_cause_behind_failed_transfers() -> None:
    clock = FakeClock()
    crew = crew_of(clock, {"A0.1": failure("A0.1", "transport"), "F0.0": failure("F0.0", "died")})
    found = Inquest(str, clock).failed(crew, [failure("A0.0", "transport")])
    assert [item.worker for item in found] == ["F0.0", "A0.0", "A0.1"]


def test_it_does_not_wait_long_once_the_cause_is_known() -> None:
    clock = FakeClock()
    found = Inquest(str, clock).failed(crew_of(clock, {}), [failure("F0.0", "raised")])
    assert found == (failure("F0.0", "raised"),)
    assert clock.now_s < 1


def test_a_worker_that_does_not_answer_is_the_cause_of_failed_transfers() -> None:
    clock = FakeClock()
    crew = crew_of(clock, {}, silent=("F0.0",))
    first, second = Inquest(str, clock).failed(crew, [failure("A0.0", "transport")])
    assert (first.worker, first.kind) == ("F0.0", FailureKind.SILENT)
    assert first.message.startswith("F0.0 answers nothing, and its death is not reported")
    assert second == failure("A0.0", "transport")


def test_a_death_that_is_reported_late_is_told_as_a_death() -> None:
    clock = FakeClock()
    crew = crew_of(clock, {}, silent=("F0.0",))
    answer_pings = crew.ping

    def ping(timeout_s: float) -> Mapping[str, Progress]:
        crew.reply(Call("step", 1), "F0.0", failure("F0.0", "died"))
        return answer_pings(timeout_s)

    crew.ping = ping
    found = Inquest(str, clock).failed(crew, [failure("A0.0", "transport")])
    assert found == (failure("F0.0", "died"), failure("A0.0", "transport"))


def test_a_missed_deadline_says_where_all_workers_are_and_keeps_their_stacks() -> None:
    clock = FakeClock()
    kept: list[str] = []

    def save(text: str) -> str:
        kept.append(text)
        return "logs/stacks.txt"

    late = Inquest(save, clock).missed_deadline(
        crew_of(clock, {}), Call("step", 1), ["A0.0", "F0.0"], 5.0
    )
    assert [item.worker for item in late] == ["F0.0", "A0.0"]  # A0.0 only waits
    assert {item.kind for item in late} == {FailureKind.LATE}
    assert late[0].message == (
        "F0.0 has not finished step 1 within 5 s; stacks of all workers are in logs/stacks.txt; "
        "where they are:\n"
        "0 steps done\n"
        "  A0.0: step 1, instruction 3 'wait x', for 9.0 s\n"
        "  A0.1: step 1, instruction 3 'wait x', for 9.0 s\n"
        "  F0.0: step 1, instruction 3 'experts_fwd L0 m0', for 9.0 s\n"
        "A0.0 has moved last, 9.0 s ago"
    )
    (text,) = kept
    assert text.endswith("\n\nstack of A0.0\n\nstack of A0.1\n\nstack of F0.0")


def test_a_worker_that_fell_silent_is_named_beside_where_the_others_are() -> None:
    clock = FakeClock()
    crew = crew_of(clock, {}, silent=("A0.1",))
    (found,) = Inquest(lambda _: "stacks.txt", clock).fell_silent(crew, ["A0.1"], 20.0)
    assert (found.worker, found.kind) == ("A0.1", FailureKind.SILENT)
    assert found.message.startswith(
        "A0.1 has answered nothing for 20 s (cluster.heartbeat_timeout_s), and its death is not "
        "reported; it may be suspended, out of memory, or stuck in native code; stacks of all "
        "workers are in stacks.txt; where they are:\n0 steps done\n"
    )
    assert "\n  A0.1: does not answer\n" in found.message


def test_a_silent_worker_comes_before_late_ones() -> None:
    clock = FakeClock()
    crew = crew_of(clock, {}, silent=("A0.1",))
    late = Inquest(str, clock).missed_deadline(crew, Call("step", 1), WORKERS, 5.0)
    assert [(item.worker, item.kind) for item in late] == [
        ("A0.1", FailureKind.SILENT),
        ("F0.0", FailureKind.LATE),
        ("A0.0", FailureKind.LATE),
    ]


def test_the_description_gives_the_cause_whole_and_the_rest_in_a_line_each() -> None:
    assert describe_failures([failure("F0.0", "died")]) == "F0.0 died"
    found = [failure("F0.0", "died"), failure("A0.0", "transport"), failure("A0.1", "transport")]
    assert describe_failures(found) == (
        "F0.0 died\nafter that:\n  A0.0 transport\n  A0.1 transport"
    )
