"""Machines by the costs of a run: a simulation on them gives these costs back."""

import pytest

from disagmoe.config.load import override
from disagmoe.costs.from_run import machines_of
from disagmoe.costs.measured import write_machine
from disagmoe.costs.scenario import scenario_of
from disagmoe.costs.times import StepTimes
from disagmoe.errors import ConfigError
from disagmoe.schedule.from_config import programs_for
from tests.unit.costs.scenarios import run

SMALL = ("model.layers=2", "hardware.attention_machine=cpu", "train.precision=fp32")
COSTS = {"attn_fwd": 0.3, "experts_fwd": 0.2, "attn_bwd": 0.7, "experts_bwd": 0.5, "head": 0.1}


def test_the_costs_of_the_run_come_back(tmp_path):
    costs = [f"parallel.costs.{name}={seconds}" for name, seconds in COSTS.items()]
    config = run("olmoe-1b-7b", *SMALL, *costs, length=256)
    attention, experts = machines_of(config)
    assert attention == experts
    file = tmp_path / "m.json"
    write_machine(file, attention)
    again = override(config, [f'hardware.attention_machine="{file}"'])
    times = StepTimes(scenario_of(again, programs_for(again).spec.layout))
    found = times.op_costs().to_dict()
    for name, seconds in COSTS.items():
        assert found[name] == pytest.approx(seconds)


def test_a_run_without_measured_costs_is_refused():
    config = run("olmoe-1b-7b", *SMALL, length=256)
    with pytest.raises(ConfigError, match="has no measured costs; parallel"):
        machines_of(config)
