"""Fits of what was measured; plain arithmetic."""

from collections.abc import Sequence
from itertools import combinations
from statistics import median

import numpy as np
import numpy.typing as npt

from disagmoe.costs.calibration import MessageWork, OpFit

_LEAST = 1e-3
"""A share of a peak is never a thousand: rounding alone can say so."""
_LEAST_S = 1e-6
"""Of what a message takes; noise can make it less than nothing."""
Floats = npt.NDArray[np.float64]


def nonnegative(columns: Sequence[Sequence[float]], times: Sequence[float]) -> list[float]:
    """Return factors >= 0 of `columns` whose sum comes nearest to `times`, by squares of relative
    errors. For a few columns: every set of them is tried."""
    goal = np.asarray(times, dtype=np.float64)
    table = (np.asarray(columns, dtype=np.float64) / goal).T
    best, least = np.zeros(len(columns)), float("inf")
    for size in range(1, len(columns) + 1):
        for chosen in combinations(range(len(columns)), size):
            found, *_ = np.linalg.lstsq(table[:, chosen], np.ones(len(goal)), rcond=None)
            error = float(np.square(table[:, chosen] @ found - 1).sum())
            if (found >= 0).all() and error < least:
                best, least = np.zeros(len(columns)), error
                best[list(chosen)] = found
    return [float(one) for one in best]


def op_fit(kernels_s: Sequence[float], measured_s: Sequence[float]) -> OpFit:
    """Return how ops that took `measured_s` follow from what their kernels take."""
    factor, fixed_s = nonnegative([kernels_s, [1.0] * len(kernels_s)], measured_s)
    return OpFit(factor=factor, fixed_s=fixed_s)


def message_work(sizes: Sequence[float], seconds: Sequence[float]) -> MessageWork:
    """Return how what messages take follows from their sizes in bytes."""
    times = [max(_LEAST_S, one) for one in seconds]
    message_s, byte_s = nonnegative([[1.0] * len(sizes), sizes], times)
    return MessageWork(message_s=message_s, byte_s=byte_s)


def saturating(sizes: Sequence[float], rates: Sequence[float], peak: float) -> tuple[float, float]:
    """Return share and half size of `rates` = `peak` x share x size / (size + half)."""
    inverse = [1 / rate for rate in rates]
    whole, per_size = nonnegative([[1.0] * len(sizes), [1 / size for size in sizes]], inverse)
    if (
        whole * peak < _LEAST
    ):  # as good as proportional to size, which has no saturation to speak of
        return median(rates) / peak, 0.0
    return 1 / (whole * peak), per_size / whole
