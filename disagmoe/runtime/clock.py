"""Where a worker's time goes: seconds by kind that add up to wall time."""

import time
from collections.abc import Callable
from enum import StrEnum


class Kind(StrEnum):
    """What a worker is doing."""

    COMPUTE = "compute"
    SEND = "send"
    RECV_WAIT = "recv_wait"
    IDLE = "idle"
    OPTIMIZER = "optimizer"
    DATA = "data"
    CHECKPOINT = "checkpoint"


class Stopwatch:
    """Charges every moment to the kind that was switched to last."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._kind = Kind.IDLE
        self._since = now()
        self._seconds = dict.fromkeys(Kind, 0.0)

    def switch(self, kind: Kind) -> None:
        """From now on charge to `kind`."""
        if kind is self._kind:
            return
        now = self._now()
        self._seconds[self._kind] += now - self._since
        self._kind, self._since = kind, now

    def take(self) -> dict[Kind, float]:
        """Return the seconds by kind since the last call, and start anew."""
        now = self._now()
        self._seconds[self._kind] += now - self._since
        self._since = now
        seconds, self._seconds = self._seconds, dict.fromkeys(Kind, 0.0)
        return seconds
