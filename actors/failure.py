"""From an exception to a WorkerFailure, and from many failures to the one that came first."""

import resource
import time
import traceback
from collections.abc import Iterable, Sequence

from disagmoe.actors.messages import FailureKind, WorkerFailure
from disagmoe.errors import DisagMoEError, PlacementError, TransportError
from disagmoe.runtime.memory import is_out_of_memory
from disagmoe.units import KIB, format_bytes

_LESS = (
    "Less is needed with a smaller parallel.micro_batch_size or parallel.in_flight, or with more "
    "workers"
)


def failure_of(worker: str, error: BaseException) -> WorkerFailure:
    """Describe what `worker` has raised."""
    chain = list(_causes(error))
    transport = any(isinstance(link, TransportError) for link in chain)
    text = str(error) if isinstance(error, DisagMoEError) else f"{type(error).__name__}: {error}"
    kind = FailureKind.TRANSPORT if transport else FailureKind.RAISED
    if any(map(is_out_of_memory, chain)):
        kind = FailureKind.MEMORY
        text = f"{text}\n{_memory_hint()}"
    return WorkerFailure(
        worker=worker,
        kind=kind,
        message=text if text.startswith(worker) else f"{worker}: {text}",
        details="".join(traceback.format_exception(error)),
        at_s=time.time(),
    )


def _memory_hint() -> str:
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
    return f"out of memory; this process has held at most {format_bytes(peak_bytes)}. {_LESS}"


def _causes(error: BaseException) -> Iterable[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__


def is_collateral(failure: WorkerFailure) -> bool:
    """Whether `failure` is what other workers see when one of them fails."""
    return failure.kind is FailureKind.TRANSPORT


def in_order_of_cause(failures: Sequence[WorkerFailure]) -> list[WorkerFailure]:
    """Return `failures` with the first cause in front.

    Failed transfers come last, since the death of a peer is noticed by its neighbours (within 40 ms
    over gloo) before Ray reports it (up to 0.5 s). Workers that are merely late are next to last.
    Otherwise the earliest failure is the cause.
    """

    def rank(failure: WorkerFailure) -> tuple[int, float]:
        order = {FailureKind.TRANSPORT: 2, FailureKind.LATE: 1}
        return order.get(failure.kind, 0), failure.at_s

    return sorted(failures, key=rank)


def died(worker: str, reason: str, *, preempted: bool = False) -> WorkerFailure:
    """Describe the death of the process of `worker`; `reason` is what Ray knows of it."""
    how = "its node was preempted" if preempted else "its process is gone"
    return WorkerFailure(
        worker=worker,
        kind=FailureKind.PREEMPTED if preempted else FailureKind.DIED,
        message=f"{worker} died: {how} ({exit_detail(reason)})",
        details=reason,
        at_s=time.time(),
    )


def evicted(worker: str, report: str) -> WorkerFailure:
    """Describe the death of `worker` by the hand of Ray, which ends processes before a node has no
    memory left; `report` says so in its first line, and then who had how much."""
    first, *_ = report.splitlines()
    return WorkerFailure(
        worker=worker,
        kind=FailureKind.MEMORY,
        message=f"{worker} died: Ray has ended its process ({first})\n{_LESS}",
        details=report,
        at_s=time.time(),
    )


def unfit(error: PlacementError) -> WorkerFailure:
    """Describe workers that cannot run where they are; `error` names them, the first one first."""
    return WorkerFailure(
        worker=str(error).partition(" ")[0],
        kind=FailureKind.UNFIT,
        message=str(error),
        at_s=time.time(),
    )


def exit_detail(reason: str) -> str:
    """Return the part of Ray's report on a dead actor that says how its process ended."""
    for mark in ("Worker exit detail: ", "The actor is dead because "):
        _, found, rest = reason.partition(mark)
        if found:
            return " ".join(rest.split())[:300]
    return " ".join(reason.split())[:300]
