"""A share of a core, as a thread finds it."""

import os

import pytest

from disagmoe.bench.pace import slowdown
from disagmoe.bench.quota import cpu_group

pytestmark = pytest.mark.net


def test_a_third_of_a_core_takes_three_times_as_long():
    """What else runs on the core takes of the whole one, too: one of three times it is quiet."""
    core = max(os.sched_getaffinity(0))
    with cpu_group(f"dm{os.getpid()}-pace") as group:
        found = (slowdown(group, core, 1 / 3) for _ in range(3))
        assert any(3.0 * 0.7 < one < 3.0 * 1.3 for one in found)
