"""A small drill: some faults of one training, and the same bits at its end."""

import json
from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(500)]


def test_a_training_meets_faults_and_ends_with_the_same_bits(
    launch: Callable, leftovers: Callable
) -> None:
    drill = launch("-m", "disagmoe", "bench", "faults", "--faults", "5", "--json")
    assert drill.finish(450) == 0, drill.stderr
    told = json.loads(drill.stdout)
    keys = ("faults", "recovered", "truthful_errors", "hangs", "leaks", "bit_equal")
    assert [told[key] for key in keys] == [5, 4, 1, 0, 0, True], drill.stderr
    assert leftovers() == []
