"""How much of some intervals of time lies within others."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Interval = tuple[float, float]
"""Begin and end."""


@dataclass(frozen=True, slots=True)
class Beside:
    """How long one thing went on, and how much of that time another did as well."""

    busy_s: float
    beside_s: float

    @property
    def share(self) -> float:
        """Of the time beside the other; 0 where the thing never went on."""
        return self.beside_s / self.busy_s if self.busy_s else 0.0

    def __add__(self, other: "Beside") -> "Beside":
        return Beside(self.busy_s + other.busy_s, self.beside_s + other.beside_s)


def beside(one: Iterable[Interval], other: Iterable[Interval]) -> Beside:
    """Return how long any interval of `one` lasts, and how long any of `other` does meanwhile."""
    ones, others = union(one), union(other)
    shared, at = 0.0, 0
    for start, end in ones:
        while at < len(others) and others[at][1] <= start:
            at += 1
        for begin, stop in others[at:]:
            if begin >= end:
                break
            shared += min(end, stop) - max(start, begin)
    return Beside(sum(end - start for start, end in ones), shared)


def union(intervals: Iterable[Interval]) -> Sequence[Interval]:
    """Return the same time as intervals that neither meet nor touch, in order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif end > start:
            joined.append((start, end))
    return joined
