"""Whole things by weights."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.config.shares import apportion, bounds

totals = st.integers(0, 40)
weight_lists = st.lists(st.floats(min_value=5e-324, max_value=1e308), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("total", "weights", "parts"),
    [
        (7, [1.0, 1.0, 1.0], [3, 2, 2]),
        (4, [3.0, 1.0], [3, 1]),
        (4, [0.3, 0.1], [3, 1]),
        (1, [1.0, 1.0], [1, 0]),
        (1, [1.0, 1.5], [0, 1]),
        (0, [2.0, 1.0], [0, 0]),
        (5, [1e308, 1e308, 1e-300], [3, 2, 0]),
    ],
)
def test_parts(total: int, weights: list[float], parts: list[int]) -> None:
    assert apportion(total, weights) == parts


@given(totals, weight_lists)
def test_parts_are_within_one_of_the_exact_share_and_complete(
    total: int, weights: list[float]
) -> None:
    parts = apportion(total, weights)
    assert sum(parts) == total
    whole = sum(map(Fraction, weights))
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * Fraction(weight) / whole) < 1


@given(totals, st.integers(1, 12), st.floats(0.1, 10))
def test_equal_weights_differ_by_at_most_one_and_the_larger_parts_come_first(
    total: int, workers: int, weight: float
) -> None:
    parts = apportion(total, [weight] * workers)
    assert parts == sorted(parts, reverse=True)
    assert max(parts) - min(parts) <= 1


@given(totals, weight_lists)
def test_bounds_lie_one_after_the_other(total: int, weights: list[float]) -> None:
    found = [bounds(total, weights, rank) for rank in range(len(weights))]
    assert [i for start, stop in found for i in range(start, stop)] == list(range(total))
