"""What is asked of the workers once something is wrong, before they are killed."""

import time
from collections.abc import Callable, Sequence

from disagmoe.actors.crew import Crew
from disagmoe.actors.failure import in_order_of_cause, is_collateral
from disagmoe.actors.messages import Call, FailureKind, WorkerFailure

COLLECT_CAUSE_S = 5.0
"""How long to wait for the cause behind failed transfers; Ray reports a death within 0.5 s."""
COLLECT_OTHERS_S = 0.5
ANSWER_S = 5.0
"""How long a living worker may take to answer a ping."""
REPORT_DEATH_S = 10.0
"""How long to wait for the report of a death once a worker has not answered: on a busy machine Ray
takes longer than usual."""
_WAITING = ("wait", "recv_counts", "reduce")
"""Instructions at which a worker waits for others."""


class Inquest:
    """Finds out who failed first."""

    def __init__(
        self, save_stacks: Callable[[str], str], now: Callable[[], float] = time.monotonic
    ) -> None:
        """`save_stacks` keeps a text for later reading and returns its place."""
        self._save_stacks = save_stacks
        self._now = now

    def failed(self, crew: Crew, seen: Sequence[WorkerFailure]) -> tuple[WorkerFailure, ...]:
        """Collect the failures of the other workers; return all in order of cause.

        `seen` are all that have been received: none of them is reported again.
        """
        failures: dict[str, WorkerFailure] = {}
        for failure in seen:
            failures.setdefault(failure.worker, failure)
        deadline = self._now() + COLLECT_CAUSE_S
        while len(failures) < len(crew.workers):
            if not all(map(is_collateral, failures.values())):
                deadline = min(deadline, self._now() + COLLECT_OTHERS_S)
            left_s = deadline - self._now()
            if left_s <= 0:
                break
            for reply in crew.poll(left_s):
                if isinstance(reply.outcome, WorkerFailure):
                    failures.setdefault(reply.worker, reply.outcome)
        found = list(failures.values())
        if all(map(is_collateral, found)):
            answered = {*failures, *crew.ping(ANSWER_S)}
            found += self._without_answer(crew, [w for w in crew.workers if w not in answered])
        return tuple(in_order_of_cause(found))

    def _without_answer(self, crew: Crew, silent: Sequence[str]) -> list[WorkerFailure]:
        """Return how each of `silent` has failed: dead, if that is reported in time."""
        failures = {worker: _silent(worker) for worker in silent}
        deadline = self._now() + REPORT_DEATH_S
        unreported = set(silent)
        while unreported and (left_s := deadline - self._now()) > 0:
            for reply in crew.poll(left_s):
                if reply.worker in unreported and isinstance(reply.outcome, WorkerFailure):
                    failures[reply.worker] = reply.outcome
                    unreported.remove(reply.worker)
        return list(failures.values())

    def missed_deadline(
        self, crew: Crew, call: Call, late: Sequence[str], limit_s: float
    ) -> tuple[WorkerFailure, ...]:
        """Ask all workers where they are, save their stacks, and say why `late` are late.

        Silent workers come first, then those that do not wait for others.
        """
        progress = crew.ping(ANSWER_S)
        place = self._save_stacks("\n\n".join(crew.stacks(ANSWER_S).values()))
        where = "".join(f"\n  {item}" for item in progress.values())
        behind = sorted(
            (worker for worker in late if worker in progress),
            key=lambda worker: progress[worker].instruction.startswith(_WAITING),
        )
        return (
            *(_silent(worker) for worker in crew.workers if worker not in progress),
            *(
                WorkerFailure(
                    worker=worker,
                    kind=FailureKind.LATE,
                    message=f"{worker} has not finished {call} within {limit_s:g} s; "
                    f"stacks of all workers are in {place}; where they are:{where}",
                    at_s=time.time(),
                )
                for worker in behind
            ),
        )


def _silent(worker: str) -> WorkerFailure:
    return WorkerFailure(
        worker=worker,
        kind=FailureKind.SILENT,
        message=f"{worker} answers nothing, and its death is not reported; it may be suspended, "
        "out of memory, or stuck in native code",
        at_s=time.time(),
    )


def describe_failures(failures: Sequence[WorkerFailure]) -> str:
    """Return the first cause, and in one line each what else failed."""
    first, *others = failures
    lines = [first.message]
    if others:
        lines.append("after that:")
        lines += [f"  {other.message.splitlines()[0]}" for other in others]
    return "\n".join(lines)
