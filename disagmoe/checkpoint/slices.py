"""Slices of parameters: runs of elements, row by row, whatever layout a parameter has."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

Shape = tuple[int, ...]


class Kind(StrEnum):
    """What is kept of a parameter."""

    WEIGHT = "weight"
    """As the network uses it; kept only where the master has another type."""
    MASTER = "master"
    """In full precision."""
    EXP_AVG = "exp_avg"
    """First moment of AdamW."""
    EXP_AVG_SQ = "exp_avg_sq"
    """Second moment."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The elements [start, stop) of one parameter."""

    name: str
    """Global name."""
    shape: Shape
    """Global shape."""
    start: int
    stop: int

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the parameter."""
        return self.start == 0 and self.stop == math.prod(self.shape)


def uncovered(start: int, stop: int, parts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the stretches of [start, stop) that none of `parts` covers."""
    at = start
    for first, last in sorted(parts):
        if first > at:
            yield at, min(first, stop)
        at = max(at, last)
        if at >= stop:
            return
    if at < stop:
        yield at, stop
