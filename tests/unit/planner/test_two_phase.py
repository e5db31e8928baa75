"""The paper's allocation: by hand, against its own local search, and its printed intensities."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.planner.two_phase import (
    Allocation,
    Work,
    exact,
    local_search,
    printed_intensities,
)
from tests.unit.costs.public_models import MODELS


def test_compute_alone_divides_workers_by_work():
    work = Work(attention=20.0, experts=12.0, network=0.1)
    assert exact(work, 32, 32) == Allocation(20, 12, 16, 16)


def test_a_slow_network_leaves_workers_unused():
    """Cards bind at 16 + 16; a period of 1 needs 10 + 6 workers only."""
    work = Work(attention=10.0, experts=6.0, network=16.0)
    found = exact(work, 32, 32)
    assert found == Allocation(10, 6, 16, 16)
    assert found.period_s(work) == 1.0


times = st.floats(0.01, 100)


@given(times, times, times, st.integers(0, 99))
def test_local_search_improves_on_its_seed_and_never_beats_all_allocations(a, f, v, number):
    work = Work(attention=a, experts=f, network=v)
    seed = Allocation(8, 8, 8, 8)
    found = local_search(work, seed, random.Random(number))
    assert found.workers == 16
    best = exact(work, 16, 16).period_s(work)
    assert best * (1 - 1e-9) <= found.period_s(work) <= seed.period_s(work)


def test_intensities_as_printed():
    """1568 and 8736 for Qwen3's attention at 4K and 32K, 3072 for its experts."""
    model = MODELS["qwen3-235b-a22b"]
    assert printed_intensities(model, 4096) == (pytest.approx(1568), 3072)
    assert printed_intensities(model, 32768) == (pytest.approx(8736, rel=0.03), 3072)
