"""From values to places on a chart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear axis: `low` is at pixel `begin`, `high` at pixel `end`."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of `value`."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.begin + share * (self.end - self.begin)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return about so many round numbers in a span, 1, 2 or 5 times a power of ten apart."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    power = 10 ** math.floor(math.log10(span / about))
    step = next(power * k for k in (1, 2, 5, 10) if span / (power * k) <= about)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Return at most so many points, each the mean of those that it stands for."""
    if len(points) <= most:
        return list(points)
    size = -(-len(points) // most)
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [
        (sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts
    ]


def extent(values: Sequence[float]) -> tuple[float, float]:
    """Return the smallest span that shows all `values`, with some air; never empty."""
    low, high = min(values), max(values)
    air = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - air, high + air
