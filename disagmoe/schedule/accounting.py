"""What becomes of a worker's time: seconds by kind, and the three shares that they add up to.

The one definition of utilisation, exposed communication and bubble, for plans, traces,
`result.json` and benchmarks alike.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a worker is doing."""

    COMPUTE = "compute"
    """Ops of the schedule."""
    SEND = "send"
    """Handing over messages, waiting until they are sent, sums and gathers among replicas."""
    RECV_WAIT = "recv_wait"
    """Waiting for a payload that all its senders have handed over: the network has it."""
    IDLE = "idle"
    """Waiting for the work of others, in a program or at a sum of a few numbers over all workers,
    and between calls."""
    OPTIMIZER = "optimizer"
    """Norm and update."""
    DATA = "data"
    """Reading and cutting the batch."""
    CHECKPOINT = "checkpoint"
    """Saving, as far as it holds up training."""


BUSY = frozenset({Kind.COMPUTE, Kind.OPTIMIZER, Kind.DATA})
EXPOSED = frozenset({Kind.SEND, Kind.RECV_WAIT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What became of a stretch of time, as shares of it; the three add up to 1."""

    utilisation: float
    """Work: ops of the schedule, the optimizer's step, and reading data."""
    exposed_communication: float
    """Nothing to do but to wait for the network: what overlap did not hide."""
    bubble: float
    """Nothing to do because others are not as far: fill, drain, imbalance, pauses between steps;
    and checkpoints that hold up training."""

    @classmethod
    def of(cls, seconds: Mapping[str, float]) -> "Shares":
        """Read seconds (or any unit) by kind; those of several workers may be added up before.

        All shares are 0 where no time has passed.
        """
        total = sum(seconds.values()) or 1.0
        busy = sum(seconds.get(kind, 0.0) for kind in BUSY)
        exposed = sum(seconds.get(kind, 0.0) for kind in EXPOSED)
        rest = sum(seconds.values()) - busy - exposed
        return cls(
            utilisation=busy / total, exposed_communication=exposed / total, bubble=rest / total
        )


def add_up(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of several times by kind."""
    total: dict[str, float] = {}
    for part in parts:
        for kind, seconds in part.items():
            total[kind] = total.get(kind, 0.0) + seconds
    return total
