"""How fast the event loop is, in seconds of this process, on the largest runs that are planned."""

import time

import pytest

from disagmoe.costs.scenario import scenario_of
from disagmoe.costs.times import StepTimes
from disagmoe.schedule.from_config import programs_for
from disagmoe.simulator.engine import Engine
from disagmoe.simulator.load import group_load
from disagmoe.simulator.lowering import lower
from disagmoe.simulator.simulate import simulate
from tests.unit.costs.scenarios import run


def large(*sets):
    """128 workers, 94 layers, 64 micro-batches."""
    sizes = {"groups": 4, "attention_workers": 16, "expert_workers": 16, "micro_batch_size": 16}
    return run("qwen3-235b-a22b", "train.global_batch_size=1024", *sets, in_flight=24, **sizes)


def seconds_of(work):
    began = time.process_time()
    work()
    return time.process_time() - began


@pytest.mark.slow
def test_operations_per_second():
    """450 thousand on a core of an AMD EPYC; a third of it where others use the core as well."""
    config = large()
    request = programs_for(config)
    times = StepTimes(scenario_of(config, request.spec.layout))
    lowered = lower(request.build(times.op_costs()).programs, times.slowest)
    load = group_load(lowered)
    engines = [Engine(lowered, load) for _ in range(5)]
    fastest = min(seconds_of(engine.run) for engine in engines)
    assert lowered.operations == 64 * (94 * 8 + 3)
    assert lowered.operations / fastest > 150_000


@pytest.mark.slow
def test_a_large_run_is_simulated_within_20_seconds():
    assert seconds_of(lambda: simulate(large())) < 20
