"""What is asked of the workers once something is wrong, before they are killed."""

import time
from collections.abc import Callable, Mapping, Sequence

from disagmoe.actors.crew import Crew
from disagmoe.actors.failure import in_order_of_cause, is_collateral
from disagmoe.actors.messages import Call, FailureKind, Progress, WorkerFailure
from disagmoe.actors.watch import Watch

COLLECT_CAUSE_S = 5.0
"""How long to wait for the cause behind failed transfers; Ray reports a death within 0.5 s."""
COLLECT_OTHERS_S = 0.5
ANSWER_S = 5.0
"""How long a living worker may take to answer a ping."""
OTHERS_ANSWER_S = 1.0
"""How long to wait for answers once it is known that some will not come."""
REPORT_DEATH_S = 10.0
"""How long to wait for the report of a death once a worker has not answered: on a busy machine Ray
takes longer than usual."""
_WAITING = ("wait", "recv_counts", "reduce")
"""Instructions at which a worker waits for others."""


class Inquest:
    """Finds out who failed first."""

    def __init__(
        self,
        save_stacks: Callable[[str], str],
        now: Callable[[], float] = time.monotonic,
        watch: Watch | None = None,
    ) -> None:
        """`save_stacks` keeps a text for later reading and returns its place."""
        self._save_stacks = save_stacks
        self._watch = watch or Watch()
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
        crew.send_pings(silent)  # so that a death is reported to those without a call as well
        while unreported and (left_s := deadline - self._now()) > 0:
            for reply in crew.poll(left_s):
                if reply.worker in unreported and isinstance(reply.outcome, WorkerFailure):
                    failures[reply.worker] = reply.outcome
                    unreported.remove(reply.worker)
        return list(failures.values())

    def fell_silent(
        self, crew: Crew, silent: Sequence[str], limit_s: float
    ) -> tuple[WorkerFailure, ...]:
        """Say that `silent` have not been heard for `limit_s`, and where the others are."""
        where = self._survey(crew, crew.ping(OTHERS_ANSWER_S))
        return tuple(
            WorkerFailure(
                worker=worker,
                kind=FailureKind.SILENT,
                message=f"{worker} has answered nothing for {limit_s:g} s "
                f"(cluster.heartbeat_timeout_s), and its death is not reported; it may be "
                f"suspended, out of memory, or stuck in native code; {where}",
                at_s=time.time(),
            )
            for worker in silent
        )

    def _survey(self, crew: Crew, progress: Mapping[str, Progress]) -> str:
        """Keep the stacks of all workers; say where these are and where the workers are."""
        stacks = crew.stacks(ANSWER_S if len(progress) == len(crew.workers) else OTHERS_ANSWER_S)
        lines = list(self._watch.survey(crew.workers, progress).lines())
        place = self._save_stacks("\n\n".join(["\n".join(lines), *stacks.values()]))
        return "\n".join([f"stacks of all workers are in {place}; where they are:", *lines])

    def missed_deadline(
        self, crew: Crew, call: Call, late: Sequence[str], limit_s: float
    ) -> tuple[WorkerFailure, ...]:
        """Ask all workers where they are, save their stacks, and say why `late` are late.

        Silent workers come first, then those that do not wait for others.
        """
        progress = crew.ping(ANSWER_S)
        where = self._survey(crew, progress)
        behind = sorted(
            (worker for worker in late if worker in progress),
            key=lambda worker: progress[worker].instruction.startswith(_WAITING),
        )
        return (
            *(_silent(worker, f"; {where}") for worker in crew.workers if worker not in progress),
            *(
                WorkerFailure(
                    worker=worker,
                    kind=FailureKind.LATE,
                    message=f"{worker} has not finished {call} within {limit_s:g} s; {where}",
                    at_s=time.time(),
                )
                for worker in behind
            ),
        )


def _silent(worker: str, where: str = "") -> WorkerFailure:
    return WorkerFailure(
        worker=worker,
        kind=FailureKind.SILENT,
        message=f"{worker} answers nothing, and its death is not reported; it may be suspended, "
        f"out of memory, or stuck in native code{where}",
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
