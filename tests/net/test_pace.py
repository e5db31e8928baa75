"""A share of a core, as a thread finds it."""

import os

import pytest

from disagmoe.bench.pace import slowdown
from disagmoe.bench.quota import cpu_group

pytestmark = pytest.mark.net


def test_a_third_of_a_core_takes_three_times_as_long():
    core = max(os.sched_getaffinity(0))
    with cpu_group(f"dm{os.getpid()}-pace") as group:
        assert slowdown(group, core, 1 / 3) == pytest.approx(3.0, rel=0.3)
