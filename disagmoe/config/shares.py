"""Whole things divided by weights: sequences among attention workers, experts among the others."""

from collections.abc import Sequence
from fractions import Fraction


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Return how many of `total` each weight gets: whole numbers that add up to `total`, each less
    than 1 from its exact share (largest remainder; of equal ones the first).

    Weights are numbers > 0 and there is at least one. 7 by equal weights of three are 3, 2, 2.
    """
    if len(set(weights)) == 1:  # the usual case, without the arithmetic below
        each, more = divmod(total, len(weights))
        return [each + (at < more) for at in range(len(weights))]
    exact = [Fraction(weight) for weight in weights]  # floats would round ties apart
    whole = sum(exact)
    quotas = [total * weight / whole for weight in exact]
    parts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(parts)), key=lambda at: parts[at] - quotas[at])
    for at in by_remainder[: total - sum(parts)]:
        parts[at] += 1
    return parts


def bounds(total: int, weights: Sequence[float], rank: int) -> tuple[int, int]:
    """Return [start, stop) of the part of `rank` where parts lie one after the other."""
    parts = apportion(total, weights)
    start = sum(parts[:rank])
    return start, start + parts[rank]
