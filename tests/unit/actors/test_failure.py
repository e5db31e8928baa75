"""What a failure is called, and which of several came first."""

import itertools

import pytest

from disagmoe.actors.failure import died, evicted, failure_of, in_order_of_cause, is_collateral
from disagmoe.actors.messages import FailureKind, WorkerFailure
from disagmoe.errors import DataError, DisagMoEError, TransportError, WorkerError
from tests.unit.actors.fakes import failure


def raised(error: DisagMoEError | ArithmeticError, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except (DisagMoEError, ArithmeticError) as caught:
        return caught


def test_an_error_of_its_own() -> None:
    found = failure_of("A0.0", raised(ZeroDivisionError("by zero")))
    assert (found.worker, found.kind) == ("A0.0", FailureKind.RAISED)
    assert found.message == "A0.0: ZeroDivisionError: by zero"
    assert found.details.startswith("Traceback")
    assert not is_collateral(found)


def test_a_message_for_users_stands_alone_and_names_the_worker_once() -> None:
    assert failure_of("A0.0", DataError("no data")).message == "A0.0: no data"
    assert failure_of("A0.0", WorkerError("A0.0 failed at x")).message == "A0.0 failed at x"


def test_a_failed_transfer_is_found_behind_other_errors() -> None:
    error = raised(WorkerError("A0.0 failed at 'wait x'"), TransportError("F0.0 has gone"))
    found = failure_of("A0.0", error)
    assert found.kind is FailureKind.TRANSPORT
    assert is_collateral(found)


def test_a_death_says_how_the_process_ended() -> None:
    report = (
        "The actor died unexpectedly before finishing this task.\n\tpid: 12\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
        "Worker exit detail: Worker unexpectedly exits with a connection error code 2.\n"
    )
    found = died("F0.1", report)
    assert found.kind is FailureKind.DIED
    assert found.message == (
        "F0.1 died: its process is gone (Worker unexpectedly exits with a connection error code 2.)"
    )
    assert found.details == report
    assert died("F0.1", "gone").message == "F0.1 died: its process is gone (gone)"


def test_a_death_for_want_of_memory_says_what_needs_less() -> None:
    report = "1 worker(s) were killed due to the node running low on memory.\nOOM kill reason: ..."
    found = evicted("F0.1", report)
    assert found.kind is FailureKind.MEMORY
    assert found.message == (
        "F0.1 died: Ray has ended its process (1 worker(s) were killed due to the node running low "
        "on memory.)\nLess is needed with a smaller parallel.micro_batch_size or "
        "parallel.in_flight, or with more workers"
    )
    assert found.details == report
    assert not is_collateral(found)


FAILURES = [
    failure("A0.0", "transport", 1.0),
    failure("A0.1", "late", 1.5),
    failure("F0.0", "died", 2.0),
    failure("F0.1", "raised", 3.0),
]


@pytest.mark.parametrize("order", list(itertools.permutations(FAILURES)))
def test_the_cause_comes_first_whatever_was_noticed_first(
    order: tuple[WorkerFailure, ...],
) -> None:
    assert [found.worker for found in in_order_of_cause(order)] == ["F0.0", "F0.1", "A0.1", "A0.0"]
