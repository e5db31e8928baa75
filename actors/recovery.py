"""Whether and how a run goes on after a failure. Pure: a history of faults in, a decision out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from disagmoe.actors.messages import FailureKind, WorkerFailure
from disagmoe.config.recovery import RecoveryConfig
from disagmoe.units import format_seconds

DRIVER = "driver"
_MOST_DOUBLINGS = 5
_NODE_FAULTS = 2
"""A node on which so much went wrong is left out if another one can take its place."""


class Cause(StrEnum):
    """Why workers were started again."""

    DIED = "died"
    SILENT = "silent"
    LATE = "late"
    RAISED = "raised"
    MEMORY = "memory"
    TRANSPORT = "transport"
    PREEMPTED = "preempted"
    UNFIT = "unfit"
    DRIVER = "driver"
    """The driver died or fell silent."""


_OF_THE_MACHINE = frozenset({Cause.DIED, Cause.SILENT, Cause.LATE})
"""What a bad machine may be the reason for."""
_OF_THE_PROGRAM = frozenset({Cause.RAISED, Cause.MEMORY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The first cause of one failure of a run."""

    cause: Cause
    at_s: float
    step: int
    """Steps that were done."""
    worker: str
    node: str
    """Id of the worker's node; empty where it has none."""
    message: str

    def repeats(self, other: "Fault") -> bool:
        """Whether the same error came at the same step of the same worker."""
        return (
            self.cause in _OF_THE_PROGRAM
            and (self.cause, self.step, self.worker) == (other.cause, other.step, other.worker)
            and _without_numbers(self.message) == _without_numbers(other.message)
        )


def fault_of(
    failures: Sequence[WorkerFailure], at_s: float, step: int, nodes: Mapping[str, str]
) -> Fault:
    """Return the first of `failures`, which are in order of cause, as a fault of a run that had
    done `step` steps on `nodes` by worker."""
    first = failures[0]
    cause = Cause(first.kind) if first.worker != DRIVER or _by_itself(first) else Cause.DRIVER
    return Fault(
        cause=cause,
        at_s=at_s,
        step=step,
        worker=first.worker,
        node=nodes.get(first.worker, ""),
        message=first.message,
    )


def _by_itself(failure: WorkerFailure) -> bool:
    return failure.kind not in (FailureKind.DIED, FailureKind.SILENT)


def _without_numbers(message: str) -> str:
    """Addresses and ports differ each time."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", message)


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the workers again after a pause."""

    pause_s: float
    leave_out: frozenset[str] = frozenset()
    """Nodes to do without, if others can take their place."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the run."""

    reason: str
    """Empty where nobody expects the run to go on."""


def decide(history: Sequence[Fault], config: RecoveryConfig) -> Restart | GiveUp:
    """Decide after the last fault of `history`, which has at least one."""
    last = history[-1]
    if config.max_failures == 0 or last.cause is Cause.UNFIT:
        return GiveUp("")
    if any(last.repeats(earlier) for earlier in history[:-1]):
        return GiveUp(
            f"not started again: the same error came at the same step ({last.step}) before"
        )
    recent = [fault for fault in history if last.at_s - fault.at_s <= config.window_s]
    leave_out = _bad_nodes(recent)
    if last.cause is Cause.PREEMPTED:
        return Restart(0.0, leave_out)
    counted = sum(fault.cause is not Cause.PREEMPTED for fault in recent)
    if counted > config.max_failures:
        return GiveUp(
            f"not started again: {counted} failures within {format_seconds(config.window_s)} "
            f"(recovery.max_failures = {config.max_failures})"
        )
    return Restart(config.backoff_s * 2 ** min(counted - 1, _MOST_DOUBLINGS), leave_out)


def _bad_nodes(faults: Sequence[Fault]) -> frozenset[str]:
    nodes = [fault.node for fault in faults if fault.node and fault.cause in _OF_THE_MACHINE]
    return frozenset(node for node in nodes if nodes.count(node) >= _NODE_FAULTS)
