"""How evenly choices fall on the experts of a layer."""

import math
from collections.abc import Sequence


def max_over_mean(choices_E: Sequence[int]) -> float:
    """Return the busiest expert's choices over the mean; 0 without any choice."""
    mean = sum(choices_E) / len(choices_E)
    return max(choices_E) / mean if mean else 0.0


def variation(choices_E: Sequence[int]) -> float:
    """Return the coefficient of variation: standard deviation over mean, 0 without any choice."""
    mean = sum(choices_E) / len(choices_E)
    if not mean:
        return 0.0
    return math.sqrt(sum((count - mean) ** 2 for count in choices_E) / len(choices_E)) / mean


def dead(choices_E: Sequence[int]) -> int:
    """Return how many experts have no choice."""
    return sum(count == 0 for count in choices_E)
