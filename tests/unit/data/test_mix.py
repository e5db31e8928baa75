import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.data.mix import PERIOD, Mix, read_mix
from disagmoe.data.prepared import Int64s
from disagmoe.errors import ConfigError

weights = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5)


@given(weights, st.integers(0, 3 * PERIOD))
def test_counts_are_the_sources_before(weights: list[float], g: int) -> None:
    mix = Mix(weights)
    counts = mix.counts(g)
    assert sum(counts) == g
    after = list(counts)
    after[mix.source(g)] += 1
    assert mix.counts(g + 1) == after


@given(weights)
def test_shares_of_a_period_are_exact_to_one_slot(weights: list[float]) -> None:
    counts = Mix(weights).counts(PERIOD)
    assert min(counts) >= 1
    for count, weight in zip(counts, weights, strict=True):
        off = len(weights)  # small sources take the slots they are rounded up to from others
        assert count == 1 or abs(count - PERIOD * weight / sum(weights)) <= off


def test_three_to_one_in_every_four() -> None:
    mix = Mix([3, 1])
    assert mix.counts(PERIOD) == [3072, 1024]
    assert [mix.source(g) for g in range(8)] == [0, 0, 1, 0, 0, 0, 1, 0]
    assert all(mix.counts(4 * i) == [3 * i, i] for i in range(3000))


class _Counted:
    def __init__(self, base: int) -> None:
        self.base = base

    def read(self, start: int, count: int) -> Int64s:
        return (self.base + np.arange(start, start + count))[:, None]


@given(st.lists(st.integers(0, 30), max_size=6))
def test_any_split_into_reads_gives_the_same_stream(counts: list[int]) -> None:
    mix, sources = Mix([1, 2, 5]), [_Counted(0), _Counted(1000), _Counted(2000)]
    whole = read_mix(mix, sources, 0, sum(counts))
    parts = [read_mix(mix, sources, sum(counts[:i]), n) for i, n in enumerate(counts)]
    assert np.concatenate([whole[:0], *parts]).tolist() == whole.tolist()


def test_each_source_goes_on_where_it_was() -> None:
    rows = read_mix(Mix([1, 1]), [_Counted(0), _Counted(1000)], 3, 4)
    assert rows[:, 0].tolist() == [1001, 2, 1002, 3]


def test_bad_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.weights are \[1.0, 0.0\]; each must be above 0"):
        Mix([1.0, 0.0])
    with pytest.raises(ConfigError, match=r"4097 data.paths; expected 1 to 4096"):
        Mix([1.0] * (PERIOD + 1))
