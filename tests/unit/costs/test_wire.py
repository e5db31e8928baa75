import pytest
import torch

from disagmoe.costs.wire import payload_bytes
from disagmoe.runtime.wire import Wire
from disagmoe.schedule.ir import SlotKind
from tests.unit.costs.scenarios import scenario

ROWS, PAIRS = 160, 480  # sections end at multiples of 16 bytes, so that padding takes nothing


@pytest.mark.parametrize("shared_experts", ["attention", "expert"])
@pytest.mark.parametrize(("groups", "residual"), [(1, "local"), (2, "direct"), (2, "fused")])
def test_messages_of_the_runtime_have_these_sizes(groups, residual, shared_experts):
    name = "qwen3-30b-a3b" if shared_experts == "attention" else "deepseek-v2-lite"
    sizes = {"groups": groups, "residual": residual, "shared_experts": shared_experts}
    what = scenario(name, length=64, **sizes)
    layout = what.layout
    wire = Wire(
        hidden=what.model.hidden,
        dtype=torch.bfloat16,
        exact=torch.float32,
        with_tokens=groups > 1,
        with_home=layout.fused_residual or shared_experts == "expert",
    )
    messages = {
        SlotKind.ROWS: wire.rows(ROWS, PAIRS),
        SlotKind.OUTPUTS: wire.outputs(ROWS),
        SlotKind.DOUTPUTS: wire.doutputs(ROWS),
        SlotKind.DROWS: wire.drows(ROWS, PAIRS),
        SlotKind.RESIDUAL: wire.residual(ROWS),
        SlotKind.DRESIDUAL: wire.residual(ROWS),
    }
    for kind, message in messages.items():
        size = payload_bytes(what, kind)
        assert ROWS * size.row + PAIRS * size.choice == message.nbytes, kind
