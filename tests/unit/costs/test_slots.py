"""Sizes of slots against what torch keeps."""

from dataclasses import fields, is_dataclass

import pytest
import torch

from disagmoe.config.starter import STARTER
from disagmoe.costs.slots import (
    Load,
    SlotSizes,
    attention_saved_bytes,
    expert_saved_bytes,
)
from disagmoe.model import partition
from disagmoe.model.block import attention_half
from disagmoe.model.experts import experts_apply, without_activations
from disagmoe.model.init import initial_store
from disagmoe.model.params import AttentionParams, ExpertParams
from disagmoe.model.rope import Rope
from disagmoe.schedule.ir import Slot, SlotKind
from disagmoe.schedule.layout import Side, Worker
from tests.unit.costs.scenarios import pair

MODEL = STARTER.model.model_copy(
    update={"hidden": 256, "heads": 8, "kv_heads": 2, "head_dim": 32, "experts": 16, "top_k": 4}
)
BATCH, LENGTH = 3, 64
TOKENS = BATCH * LENGTH


def tensors(value):
    """All tensors in a value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))


def stores(found):
    """Bytes by storage, so that views count once."""
    return {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in found}


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_what_attention_keeps_for_its_backward(family, dtype):
    model = MODEL.model_copy(update={"family": family})
    store = initial_store(
        partition.model_tensors(model), seed=0, std=0.02, dtype=dtype, device=torch.device("cpu")
    )
    for value in store.values():
        value.requires_grad_()
    rope = Rope.of(model, LENGTH, dtype)
    kept = []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    h_BSD = torch.randn(BATCH, LENGTH, model.hidden).to(dtype).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = attention_half(AttentionParams.read(store, model, 0), h_BSD, model, rope, layer=0)
    found = stores([h_BSD, *kept, *tensors(out)])
    router = store["layers.0.router.weight"]  # widened to fp32, once for all tokens
    for parameter in (*store.values(), rope.cos_SC, rope.sin_SC):
        found.pop(parameter.untyped_storage().data_ptr(), None)
    once = router.numel() * 4 if dtype == torch.bfloat16 else 0
    per_token = (sum(found.values()) - once) / TOKENS
    assert attention_saved_bytes(model, dtype.itemsize) == pytest.approx(per_token, rel=0.03)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_what_experts_keep_for_their_backward(dtype):
    store = initial_store(
        partition.model_tensors(MODEL), seed=0, std=0.02, dtype=dtype, device=torch.device("cpu")
    )
    rows, pairs = 100, 250
    places = torch.sort(torch.randint(rows, (pairs,))).values
    experts = torch.randint(MODEL.experts, (pairs,))
    _, kept = experts_apply(
        ExpertParams.read(store, MODEL, 0),
        torch.randn(rows, MODEL.hidden).to(dtype),
        places,
        experts,
        torch.rand(pairs),
    )
    found = sum(stores(tensors(kept)).values())
    counted = expert_saved_bytes(MODEL, dtype.itemsize, Load(rows, pairs), fused=False)
    assert counted == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rows_are_kept_where_the_rest_is_computed_again(dtype):
    store = initial_store(
        partition.model_tensors(MODEL), seed=0, std=0.02, dtype=dtype, device=torch.device("cpu")
    )
    rows, pairs = 100, 250
    places = torch.sort(torch.randint(rows, (pairs,))).values
    rows_RD = torch.randn(rows, MODEL.hidden).to(dtype)
    experts = torch.randint(MODEL.experts, (pairs,))
    params = ExpertParams.read(store, MODEL, 0)
    _, kept = experts_apply(params, rows_RD, places, experts, torch.rand(pairs))
    found = sum(stores(tensors(without_activations(kept, rows_RD))).values())
    counted = expert_saved_bytes(
        MODEL, dtype.itemsize, Load(rows, pairs), fused=False, recomputed=True
    )
    assert counted == pytest.approx(found, rel=0.02)


def slot(side, kind, layer=0):
    return Slot(side, kind, layer, 0)


def test_slots_of_a_large_run():
    """16 x 16 workers, one sequence of 4096 tokens each; 6.597 rows per token, 8 choices."""
    sizes = SlotSizes(pair("qwen3-235b-a22b"), Worker.parse("A0.3"))
    assert sizes(slot(Side.ATTENTION, SlotKind.HIDDEN)) == 4096 * 4096 * 2
    rows = 4096 * (6.597 * 8192 + 8 * 12)
    assert sizes(slot(Side.ATTENTION, SlotKind.ROWS)) == pytest.approx(rows, rel=1e-3)
    assert sizes(slot(Side.ATTENTION, SlotKind.SAVED)) == pytest.approx(0.78e9, rel=0.05)
    experts = SlotSizes(pair("qwen3-235b-a22b"), Worker.parse("F0.3"))
    assert experts(slot(Side.EXPERT, SlotKind.ROWS)) == pytest.approx(rows, rel=1e-3)
    pairs = 16 * 4096 * 8 / 16
    saved = pairs * ((2 * 4096 + 3 * 1536) * 2)
    assert experts(slot(Side.EXPERT, SlotKind.SAVED)) == pytest.approx(saved, rel=0.01)
    assert experts.worst == Load(16 * 4096, 16 * 4096 * 8)


def test_skewed_layers_have_sizes_of_their_own():
    sizes = SlotSizes(pair("qwen3-235b-a22b", "hardware.expert_skew=1.0"), Worker.parse("F0.3"))
    one, other = (sizes(slot(Side.EXPERT, SlotKind.SAVED, layer)) for layer in (0, 1))
    assert one != other


def test_latent_attention_keeps_what_it_compresses():
    v3 = pair("deepseek-v3").model
    no_query = v3.model_copy(update={"q_lora_rank": 0})
    less = attention_saved_bytes(v3, 2) - attention_saved_bytes(no_query, 2)
    assert less == 1536 * (2 * 2 + 6)
    no_shared = v3.model_copy(update={"shared_width": 0})
    assert attention_saved_bytes(v3, 2) - attention_saved_bytes(no_shared, 2) == 3 * 2048 * 2


def test_places_without_a_slot_are_a_mistake():
    sizes = SlotSizes(pair("qwen3-235b-a22b"), Worker.parse("F0.0"))
    with pytest.raises(AssertionError, match="counts is no slot of experts"):
        sizes(slot(Side.EXPERT, SlotKind.COUNTS))
