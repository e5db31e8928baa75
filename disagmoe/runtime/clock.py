"""Where a worker's time goes: seconds by kind that add up to wall time, and when it was what."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.ir import TransferKey


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of a worker's time; times are seconds of its own clock."""

    kind: Kind
    label: str
    """The instruction, or empty."""
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class _Wait:
    """A stretch that is not charged yet, and what came at its end."""

    kind: Kind
    awaited: TransferKey
    span: int | None
    """Its place among the spans, where those are kept."""
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
        self._awaited: TransferKey | None = None
        self._waits: list[_Wait] = []

    def trace(self, on: bool) -> None:
        """Begin or end to keep spans; ending forgets those not taken."""
        self._spans = [] if on else None

    @property
    def kind(self) -> Kind:
        """What this moment is charged to."""
        return self._kind

    @property
    def traces(self) -> bool:
        """Whether spans are kept."""
        return self._spans is not None

    def switch(self, kind: Kind, label: str = "", awaited: TransferKey | None = None) -> None:
        """From now on charge to `kind`, and name the span `label` where spans are kept.

        A wait for an `awaited` payload can be divided by `settle` once it is known since when that
        was on its way.
        """
        same = kind is self._kind and awaited == self._awaited
        if same and (self._spans is None or label == self._label):
            return
        self._close(self._now())
        self._kind, self._label, self._awaited = kind, label, awaited

    def settle(self, sent_s: Mapping[TransferKey, float]) -> None:
        """Charge each wait so far to IDLE up to when what it waited for was sent, by this clock.

        What `sent_s` does not name was never on its way: all of the wait for it is idle.
        """
        waits, self._waits = self._waits, []
        begun: dict[int, float] = {}
        for wait in waits:
            sent = sent_s.get(wait.awaited, wait.end_s)
            sent = min(max(sent, wait.start_s), wait.end_s)
            self._seconds[Kind.IDLE] += sent - wait.start_s
            self._seconds[wait.kind] += wait.end_s - sent
            if wait.span is not None:
                begun[wait.span] = sent
        if self._spans is not None:
            self._spans = list(_divided(self._spans, begun))

    def take(self) -> dict[Kind, float]:
        """Return the seconds by kind since the last call, and start anew."""
        self._close(self._now())
        for wait in self._waits:
            self._seconds[wait.kind] += wait.end_s - wait.start_s
        self._waits.clear()
        seconds, self._seconds = self._seconds, dict.fromkeys(Kind, 0.0)
        return seconds

    def take_spans(self) -> tuple[Span, ...]:
        """Return the spans kept since the last call, and keep on."""
        if self._spans is None:
            return ()
        spans, self._spans = self._spans, []
        return tuple(spans)

    def _close(self, now: float) -> None:
        place = None
        if self._spans is not None and now > self._since:
            place = len(self._spans)
            self._spans.append(Span(self._kind, self._label, self._since, now))
        if self._awaited is None:
            self._seconds[self._kind] += now - self._since
        else:
            self._waits.append(_Wait(self._kind, self._awaited, place, self._since, now))
        self._since = now


def _divided(spans: Iterable[Span], begun: Mapping[int, float]) -> Iterable[Span]:
    """Yield `spans`, those whose place is in `begun` in two parts, if both have a length."""
    for place, span in enumerate(spans):
        middle = begun.get(place, span.start_s)
        if middle > span.start_s:
            yield Span(Kind.IDLE, span.label, span.start_s, middle)
        if span.end_s > middle:
            yield Span(span.kind, span.label, middle, span.end_s)


def seconds_by_kind(spans: Iterable[Span]) -> dict[str, float]:
    """Return what a stopwatch has charged in `spans`, every kind of them."""
    seconds: dict[str, float] = {str(kind): 0.0 for kind in Kind}
    for span in spans:
        seconds[span.kind] += span.end_s - span.start_s
    return seconds
