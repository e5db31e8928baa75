"""Which workers have stopped to answer. Ray reports a death, but never a process that is frozen."""

import time
from collections.abc import Callable, Sequence

from disagmoe.actors.crew import Crew

EVERY_S = 2.0
"""A worker that was not heard for so long is asked."""


class Heartbeats:
    """When each worker was heard last: by any reply, or by one to a ping of its own."""

    def __init__(
        self, crew: Crew, limit_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._crew = crew
        self._limit_s = limit_s
        self._now = now
        self._heard_s: dict[str, float] = {}
        self._asked_s: dict[str, float] = {}

    @property
    def begun(self) -> bool:
        """Whether workers are listened to."""
        return bool(self._heard_s)

    def begin(self) -> None:
        """Listen from now on: all workers are there."""
        self._heard_s = dict.fromkeys(self._crew.workers, self._now())

    def heard(self, worker: str, *, ping: bool = False) -> None:
        """Take in that `worker` has answered, to a ping or to something else."""
        if ping:
            self._asked_s.pop(worker, None)
        if self.begun:
            self._heard_s[worker] = self._now()

    def beat(self) -> Sequence[str]:
        """Ask those that were not heard lately; return those that were asked and have not answered
        in time. What was here before is to be taken in first."""
        now_s = self._now()
        quiet = [w for w, s in self._heard_s.items() if now_s - s >= EVERY_S]
        ask = [worker for worker in quiet if worker not in self._asked_s]
        if ask:
            self._crew.send_pings(ask)
            self._asked_s.update(dict.fromkeys(ask, now_s))
        # from when it was asked: before that it may be the driver that was busy
        return [w for w in quiet if now_s - self._asked_s[w] >= self._limit_s - EVERY_S]
