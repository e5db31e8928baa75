"""Where a worker's time goes: seconds by kind that add up to wall time, and when it was what."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of a worker's time; times are seconds of its own clock."""

    kind: Kind
    label: str
    """The instruction, or empty."""
    start_s: float
    end_s: float


class Stopwatch:
    """Charges every moment to the kind that was switched to last.

    Seconds and spans come from the same readings of the clock, so they agree exactly.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._kind = Kind.IDLE
        self._label = ""
        self._since = now()
        self._seconds = dict.fromkeys(Kind, 0.0)
        self._spans: list[Span] | None = None

    def trace(self, on: bool) -> None:
        """Begin or end to keep spans; ending forgets those not taken."""
        self._spans = [] if on else None

    def switch(self, kind: Kind, label: str = "") -> None:
        """From now on charge to `kind`, and name the span `label` where spans are kept."""
        if kind is self._kind and (self._spans is None or label == self._label):
            return
        self._close(self._now())
        self._kind, self._label = kind, label

    def take(self) -> dict[Kind, float]:
        """Return the seconds by kind since the last call, and start anew."""
        self._close(self._now())
        seconds, self._seconds = self._seconds, dict.fromkeys(Kind, 0.0)
        return seconds

    def take_spans(self) -> tuple[Span, ...]:
        """Return the spans kept since the last call, and keep on."""
        if self._spans is None:
            return ()
        spans, self._spans = self._spans, []
        return tuple(spans)

    def _close(self, now: float) -> None:
        self._seconds[self._kind] += now - self._since
        if self._spans is not None and now > self._since:
            self._spans.append(Span(self._kind, self._label, self._since, now))
        self._since = now


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What became of a stretch of time, as shares of it; the three add up to 1.

    Definitions for whoever compares runs. What a run prints as the share that a group computes is
    narrower: ops of the schedule alone (`compute_share` in actors/merge.py).
    """

    utilisation: float
    """Compute: ops of the schedule, the optimizer's step, and reading data."""
    exposed_communication: float
    """Waiting for payloads, counts and sums, and handing over sends."""
    bubble: float
    """Neither: between steps and calls, and checkpoints that hold up training."""

    @classmethod
    def of(cls, seconds: Mapping[str, float]) -> "Shares":
        """Read seconds by kind; all 0 where no time has passed."""
        total = sum(seconds.values()) or 1.0
        busy = sum(seconds.get(kind, 0.0) for kind in (Kind.COMPUTE, Kind.OPTIMIZER, Kind.DATA))
        exposed = sum(seconds.get(kind, 0.0) for kind in (Kind.SEND, Kind.RECV_WAIT))
        rest = sum(seconds.values()) - busy - exposed
        return cls(
            utilisation=busy / total, exposed_communication=exposed / total, bubble=rest / total
        )
