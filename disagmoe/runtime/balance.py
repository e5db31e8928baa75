"""Shares of unequal workers, from how long each needs for what it has."""

from collections.abc import Mapping, Sequence

from disagmoe.config.shares import apportion
from disagmoe.schedule.layout import Worker

GAIN = 0.1
"""By how much the slowest worker's time must shrink for shares to change: below that is noise, and
other shares mean other roundings."""
_DIGITS = 3


def worst_of_ranks(by_worker: Mapping[str, float]) -> list[float]:
    """Return the largest value of each rank over groups and rings, which share one division."""
    worst: dict[int, float] = {}
    for name, value in by_worker.items():
        rank = Worker.parse(name).rank
        worst[rank] = max(value, worst.get(rank, value))
    return [worst[rank] for rank in sorted(worst)]


def balanced(total: int, parts: Sequence[int], load: Sequence[float]) -> list[float]:
    """Return weights, adding up to about 1, that divide `total` so that all workers are done at
    the same time; [] where `parts`, the division in use, is within GAIN of it.

    `load` is the time that each worker needs for one of its things, in any unit. It is not known of
    a worker without any, nor is a division that would leave one without: both give [].
    """
    if 0 in parts or min(load) <= 0:
        return []
    speed = [1 / each for each in load]
    weights = [max(round(each / sum(speed), _DIGITS), 10**-_DIGITS) for each in speed]
    better = apportion(total, weights)
    if 0 in better or _slowest(better, load) > (1 - GAIN) * _slowest(parts, load):
        return []
    return weights


def _slowest(parts: Sequence[int], load: Sequence[float]) -> float:
    return max(part * each for part, each in zip(parts, load, strict=True))
