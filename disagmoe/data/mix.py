"""A weighted mix of sources: which source gives global sequence g, as a pure function of g."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from disagmoe.data.prepared import Int64s
from disagmoe.errors import ConfigError

PERIOD = 4096


class Sequences(Protocol):
    """Sequences counted from 0 without end."""

    def read(self, start: int, count: int) -> Int64s:
        """Sequences [start, start + count): [count, S + 1]."""
        ...


class Mix:
    """Interleaving of sources in fixed shares.

    Every 4096 sequences hold the same slots: each source gets its share of them by largest
    remainder, at least one, spread evenly (slot j of n stands at (j + 1/2) / n, ties go to the
    earlier source). So shares are exact to 1/4096 and the count of each source is known at any g.
    """

    def __init__(self, weights: list[float]) -> None:
        """Raises ConfigError for weights that are not positive, or more sources than slots."""
        if any(weight <= 0 for weight in weights):
            raise ConfigError(f"data.weights are {weights}; each must be above 0")
        if not 1 <= len(weights) <= PERIOD:
            raise ConfigError(f"{len(weights)} data.paths; expected 1 to {PERIOD}")
        self._slots = _slots(_apportion(weights))
        one_hot = self._slots[:, None] == np.arange(len(weights))[None, :]
        self._before = np.zeros((PERIOD + 1, len(weights)), dtype=np.int64)
        np.cumsum(one_hot, axis=0, out=self._before[1:])

    def source(self, g: int) -> int:
        """Source of global sequence `g`."""
        return int(self._slots[g % PERIOD])

    def counts(self, g: int) -> list[int]:
        """How many of the first `g` sequences each source gives."""
        periods, rest = divmod(g, PERIOD)
        return [int(n) for n in periods * self._before[PERIOD] + self._before[rest]]


def read_mix(mix: Mix, sources: Sequence[Sequences], start: int, count: int) -> Int64s:
    """Global sequences [start, start + count) of a mix: [count, S + 1]."""
    before, after = mix.counts(start), mix.counts(start + count)
    queues = [
        iter(source.read(first, last - first))
        for source, first, last in zip(sources, before, after, strict=True)
    ]
    rows = [next(queues[mix.source(g)]) for g in range(start, start + count)]
    return np.stack(rows) if rows else sources[0].read(0, 0)


def _apportion(weights: list[float]) -> list[int]:
    """`PERIOD` slots by largest remainder, at least one each."""
    total = sum(weights)
    exact = [PERIOD * weight / total for weight in weights]
    slots = [max(1, int(share)) for share in exact]

    def surplus(k: int) -> float:
        return slots[k] - exact[k]

    while sum(slots) < PERIOD:
        slots[min(range(len(slots)), key=surplus)] += 1
    while sum(slots) > PERIOD:  # small sources were rounded up to one slot
        slots[max((k for k in range(len(slots)) if slots[k] > 1), key=surplus)] -= 1
    return slots


def _slots(counts: list[int]) -> Int64s:
    sources = np.repeat(np.arange(len(counts)), counts)
    times = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    return sources[np.lexsort((sources, times))].astype(np.int64)
