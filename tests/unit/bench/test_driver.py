"""What a driver costs."""

import pytest

from disagmoe.bench.driver import config_of, cost_of


def test_costs_of_a_step_and_of_a_call() -> None:
    cost = cost_of([0.101, 0.102, 0.106], undriven_s=0.1015, cpu_s=0.012, workers=4, steps=3)
    assert cost.step_ms == pytest.approx(103.0)
    assert cost.step_overhead_ms == pytest.approx(3.0)
    assert cost.median_overhead_ms == pytest.approx(2.0)
    assert cost.undriven_overhead_ms == pytest.approx(1.5)
    assert cost.call_us == pytest.approx(1000.0)
    assert cost.workers_at_full_driver == 100


def test_half_of_the_workers_are_of_each_kind() -> None:
    parallel = config_of(16, 9).parallel
    assert (parallel.attention_workers, parallel.expert_workers) == (8, 8)
