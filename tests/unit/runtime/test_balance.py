"""Shares of unequal workers."""

import pytest

from disagmoe.runtime.balance import balanced, worst_of_ranks


def test_a_rank_is_as_slow_as_its_slowest_group_or_ring() -> None:
    by_worker = {"A0.0": 1.0, "A0.1": 5.0, "A1.0": 2.0, "A1.1": 3.0, "r1.A0.0": 4.0}
    assert worst_of_ranks(by_worker) == [4.0, 5.0]


@pytest.mark.parametrize(
    ("total", "parts", "load", "shares"),
    [
        (12, [6, 6], [1.0, 2.0], [0.667, 0.333]),
        (12, [8, 4], [1.0, 2.0], []),  # as it is
        (12, [6, 6], [1.0, 1.1], []),  # 6 and 6 again
        (100, [50, 50], [1.0, 1.2], []),  # 55 and 45: a gain of 9 % only
        (100, [50, 50], [1.0, 1.3], [0.565, 0.435]),
        (9, [3, 3, 3], [2.0, 1.0, 2.0], [0.25, 0.5, 0.25]),
        (2, [1, 1], [1.0, 9.0], []),  # would leave one without
        (2, [2, 0], [1.0, 0.0], []),  # nothing is known of the second
        (12, [6, 6], [1.0, 0.0], []),
    ],
)
def test_shares(total: int, parts: list[int], load: list[float], shares: list[float]) -> None:
    assert balanced(total, parts, load) == shares
