"""Axes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.report.scale import Scale, extent, thinned, ticks

NUMBERS = st.floats(min_value=-1e9, max_value=1e9, allow_nan=False)


def test_a_scale_maps_its_ends() -> None:
    scale = Scale(2.0, 6.0, 100.0, 20.0)
    assert [scale.at(value) for value in (2.0, 4.0, 6.0)] == [100.0, 60.0, 20.0]
    assert Scale(3.0, 3.0, 5.0, 9.0).at(3.0) == 5.0


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ((0.0, 1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ((3.0, 47.0), [10.0, 20.0, 30.0, 40.0]),
        ((1.0, 1.0), [1.0]),
    ],
)
def test_ticks_are_round(span: tuple[float, float], expected: list[float]) -> None:
    assert ticks(*span, 5) == pytest.approx(expected)


@given(NUMBERS, st.floats(min_value=1e-3, max_value=1e9), st.integers(2, 12))
def test_ticks_are_few_and_within(low: float, span: float, about: int) -> None:
    high = low + span
    found = ticks(low, high, about)
    assert len(found) <= about + 1
    slack = 1e-6 * span + 1e-6
    assert all(low - slack <= value <= high + slack for value in found)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=60), st.integers(1, 12))
def test_thinned_points_are_few_and_keep_the_span(
    points: list[tuple[float, float]], most: int
) -> None:
    found = thinned(points, most)
    assert len(found) <= most
    assert bool(found) == bool(points)
    if len(points) <= most:
        assert found == points
    for x, y in found:
        assert min(p[0] for p in points) - 1e-6 <= x <= max(p[0] for p in points) + 1e-6
        assert math.isfinite(y)


def test_thinned_points_are_means() -> None:
    points = [(1.0, 10.0), (2.0, 20.0), (3.0, 60.0)]
    assert thinned(points, 2) == [(1.5, 15.0), (3.0, 60.0)]


def test_an_extent_is_never_empty() -> None:
    assert extent([0.0]) == (-1.0, 1.0)
    assert extent([2.0]) == (1.9, 2.1)
    assert extent([0.0, 10.0]) == pytest.approx((-0.6, 10.6))
