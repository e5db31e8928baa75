"""Scenarios on the cluster of the paper: hosts of 8 H800."""

from disagmoe.config.load import override
from disagmoe.config.starter import STARTER
from disagmoe.costs.scenario import Scenario, scenario_of
from disagmoe.schedule.from_config import programs_for
from tests.unit.costs.public_models import MODELS


def run(model, *sets, length=4096, **parallel):
    """A run config: `parallel` are settings of that section."""
    base = STARTER.model_copy(update={"model": MODELS[model] if isinstance(model, str) else model})
    return override(
        base,
        [
            f"train.sequence_length={length}",
            "train.global_batch_size=1024",
            "cluster.device=cuda",
            *(f"parallel.{key}={_toml(value)}" for key, value in parallel.items()),
            *sets,
        ],
    )


def scenario(model, *sets, length=4096, **parallel) -> Scenario:
    """Its scenario."""
    config = run(model, *sets, length=length, **parallel)
    return scenario_of(config, programs_for(config).spec.layout)


def pair(model, *sets, length=4096, workers=16, **parallel) -> Scenario:
    """One pair of groups of `workers` each, one sequence per attention worker."""
    sizes = {"attention_workers": workers, "expert_workers": workers, "micro_batch_size": workers}
    return scenario(model, *sets, length=length, **(sizes | parallel))


def _toml(value):
    return str(value).lower() if isinstance(value, bool) else str(value)
