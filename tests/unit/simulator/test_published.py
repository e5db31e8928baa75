"""A published trace as an integration test: two micro-batches that hide each other's transfers."""

import pytest

from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.from_config import programs_for
from disagmoe.simulator.engine import Engine
from disagmoe.simulator.invariants import check
from disagmoe.simulator.load import group_load
from disagmoe.simulator.lowering import lower
from tests.unit.costs.public_models import MODELS
from tests.unit.costs.scenarios import run

LAYERS = 4
# train.json of github.com/deepseek-ai/profile-data, ms for 4 layers forward and backward of 4,096
# tokens per H800: kernels of compute, beside those of communication
FLASH_FWD, FLASH_BWD, OTHER_COMPUTE = 5.0, 17.0, 102.3
TRANSFERS, NOTIFY = 80.5, 32.6


def trace_costs():
    """Other compute is divided by model FLOPs: half of it is attention's, a third forward."""
    rest = OTHER_COMPUTE / LAYERS / 2
    transfer = (TRANSFERS + NOTIFY) / LAYERS / 4
    return OpCosts(
        embed=0.0,
        attn_fwd=FLASH_FWD / LAYERS + rest / 3,
        experts_fwd=rest / 3,
        head=0.0,
        experts_bwd=rest * 2 / 3,
        attn_bwd=FLASH_BWD / LAYERS + rest * 2 / 3,
        embed_bwd=0.0,
        rows=transfer,
        outputs=transfer,
        doutputs=transfer,
        drows=transfer,
    )


def makespan(micro_batches):
    """One worker of 64, whose peers do the same at the same time."""
    model = MODELS["qwen3-235b-a22b"].model_copy(update={"layers": LAYERS})
    sizes = {"attention_workers": 8, "expert_workers": 8, "micro_batch_size": 8}
    batch = f"train.global_batch_size={8 * micro_batches}"
    config = run(model, batch, schedule="ep_overlap", in_flight=4, **sizes)
    costs = trace_costs()
    compiled = programs_for(config).build(costs)
    lowered = lower(compiled.programs, costs)
    engine = Engine(lowered, group_load(lowered))
    engine.run()
    check(engine)
    return max(engine.op_end)


def test_a_steady_chunk_of_deepseek_v3_takes_as_long_as_in_its_trace():
    """129.0 ms, of which compute is busy for 124.3 and communication for 113.4."""
    period = (makespan(24) - makespan(8)) / 16
    assert period > FLASH_FWD + FLASH_BWD + OTHER_COMPUTE - 1e-9
    assert period == pytest.approx(129.0, rel=0.04)
