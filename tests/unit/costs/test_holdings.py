import math

import pytest

from disagmoe.config.shares import apportion
from disagmoe.costs.holdings import holdings
from disagmoe.costs.parameters import total_parameters
from disagmoe.costs.scenario import scenario_of
from disagmoe.model.partition import expert_ranges
from disagmoe.runtime.parameters import local_tensors
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.layout import Side
from tests.unit.costs.public_models import MODELS
from tests.unit.costs.scenarios import run, scenario

SMALL = MODELS["qwen3-30b-a3b"].model_copy(
    update={"layers": 5, "hidden": 32, "vocab_size": 100, "experts": 7, "top_k": 2}
)


ONE_GROUP = [{}, {"rings": 2}, {"schedule": "ep_1f1b"}]


@pytest.mark.parametrize(
    ("parallel", "tied"),
    [
        *((sets, tied) for sets in ONE_GROUP for tied in (False, True)),
        ({"groups": 2, "attention_workers": 2, "expert_workers": 3, "micro_batch_size": 2}, False),
        ({"groups": 2, "residual": "direct"}, False),
        ({"groups": 3, "schedule": "ep_1f1b"}, False),
        ({"groups": 5, "schedule": "af_pipe"}, True),
    ],
    ids=str,
)
def test_the_runtime_holds_as_much(parallel, tied):
    parallel = {"attention_workers": 1, "expert_workers": 1, "micro_batch_size": 1, **parallel}
    model = SMALL.model_copy(update={"tied_embeddings": tied})
    config = run(model, length=8, **parallel)
    layout = programs_for(config).spec.layout
    what = scenario_of(config, layout)
    ranges = expert_ranges(model.experts, config.parallel.expert_weights)
    for worker in layout.workers:
        local = local_tensors(model, layout, worker, ranges)
        real = sum(math.prod(tensor.shape) for part in local.values() for tensor in part)
        counted = sum(held.parameters for held in holdings(what, worker))
        # a norm that both sides of a fused residual apply is counted for each
        twice = sum(math.prod(t.shape) for t in local["shared"]) if layout.colocated else 0
        assert counted == real + twice


@pytest.mark.parametrize("shared_experts", ["attention", "expert"])
@pytest.mark.parametrize("name", ["qwen1.5-moe-a2.7b", "deepseek-v3"])
def test_shared_experts_are_held_where_the_runtime_has_them(name, shared_experts):
    dense = MODELS[name].dense_layers
    model = MODELS[name].model_copy(
        update={"layers": dense + 4, "vocab_size": 100, "experts": 8, "top_k": 2}
        | ({"expert_groups": 1, "top_groups": 1} if name == "deepseek-v3" else {})
    )
    parallel = {"groups": 2, "attention_workers": 2, "expert_workers": 3, "micro_batch_size": 2}
    config = run(model, length=8, residual="direct", shared_experts=shared_experts, **parallel)
    layout = programs_for(config).spec.layout
    what = scenario_of(config, layout)
    ranges = expert_ranges(model.experts, config.parallel.expert_weights)
    for worker in layout.workers:
        local = local_tensors(
            model, layout, worker, ranges, shared_with_experts=shared_experts == "expert"
        )
        real = [sum(math.prod(tensor.shape) for tensor in part) for part in local.values()]
        held = holdings(what, worker)
        assert sorted(one.parameters for one in held) == sorted(filter(None, real))
        spread = [one.peers for one in held]
        if worker.group.side is Side.EXPERT:
            assert spread == ([1, 3] if shared_experts == "expert" else [1])


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-120b", "mixtral-8x7b"])
def test_all_workers_together_hold_the_model(name):
    model = MODELS[name]
    what = scenario(
        name, "hardware.workers_per_node=4", groups=4, expert_workers=3, residual="direct"
    )
    layout = what.layout
    held = [
        one
        for worker in layout.workers
        for one in holdings(what, worker)
        if one.side is Side.EXPERT or worker.rank == 0
    ]
    assert sum(one.parameters for one in held) == total_parameters(model)
    assert {one.replicas for one in held} == {1, 2}
    assert apportion(model.experts, [1.0] * 3) == list(what.expert_parts)


def test_shards_round_up():
    what = scenario(SMALL, length=8, attention_workers=3, micro_batch_size=3)
    (held,) = holdings(what, what.layout.workers[0])
    assert held.shard == math.ceil(held.parameters / 3)
