"""Time within other time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagmoe.schedule.intervals import Beside, beside, union

SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)).map(lambda x: (x[0], sum(x))))


def test_touching_intervals_are_one_and_empty_ones_are_none() -> None:
    assert union([(3, 4), (1, 2), (2, 3), (6, 6)]) == [(1, 4)]


def test_shares() -> None:
    found = beside([(0, 4), (6, 8)], [(1, 2), (3, 7), (9, 10)])
    assert found == Beside(busy_s=6, beside_s=3)
    assert found.share == pytest.approx(0.5)
    assert found + Beside(2, 0) == Beside(8, 3)
    assert beside([], [(0, 1)]).share == 0


@given(SPANS, SPANS)
@settings(derandomize=True, deadline=None)
def test_by_counting(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    def units(spans: list[tuple[int, int]]) -> set[int]:
        return {at for start, end in spans for at in range(start, end)}

    shared = units(one) & units(other)
    assert beside(one, other) == Beside(len(units(one)), len(shared))
