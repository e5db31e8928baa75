import torch
import torch.nn.functional as F

from disagmoe.config.model import ModelConfig
from disagmoe.model.attention import attention
from disagmoe.model.block import attention_half, embed, head_logits, head_loss
from disagmoe.model.init import initial_store
from disagmoe.model.losses import StepTotals
from disagmoe.model.norm import rms_norm
from disagmoe.model.params import AttentionParams, HeadParams
from disagmoe.model.partition import model_tensors
from disagmoe.model.rope import Rope
from disagmoe.model.router import route

CONFIG = ModelConfig(
    family="qwen3_moe",
    vocab_size=13,
    hidden=8,
    layers=1,
    heads=2,
    kv_heads=1,
    head_dim=4,
    experts=4,
    top_k=2,
    expert_width=4,
    norm_topk_prob=False,
)
ROPE = Rope.of(CONFIG, 5, torch.float64)


def store() -> dict[str, torch.Tensor]:
    return initial_store(model_tensors(CONFIG), seed=0, std=0.3, dtype=torch.float64)


def test_attention_half_is_norm_attention_residual_norm_router() -> None:
    params = AttentionParams.read(store(), CONFIG, 0)
    h = torch.randn(3, 5, 8, dtype=torch.float64)
    out = attention_half(params, h, CONFIG, ROPE, layer=0)
    x = h + attention(params, rms_norm(h, params.attn_norm_D, 1e-6), CONFIG, ROPE)
    n = rms_norm(x, params.moe_norm_D, 1e-6).flatten(0, 1)
    routing = route(params.router_ED, n, top_k=2, renormalise=False)
    assert torch.equal(out.x_TD, x.flatten(0, 1))
    assert torch.equal(out.n_TD, n)
    assert torch.equal(out.routing.expert_TK, routing.expert_TK)
    assert torch.equal(out.routing.gate_TK, routing.gate_TK)


def test_a_worker_without_sequences_gets_zero_gradients() -> None:
    leaves = {name: tensor.requires_grad_() for name, tensor in store().items()}
    h = embed(leaves["embed.weight"], torch.zeros(0, 5, dtype=torch.int64))
    out = attention_half(AttentionParams.read(leaves, CONFIG, 0), h, CONFIG, ROPE, layer=0)
    totals = StepTotals(valid_targets=7, tokens=20, sequences=4, micro_batches=1)
    no_targets = torch.zeros(0, dtype=torch.int64)
    loss = head_loss(HeadParams.read(leaves, CONFIG), out.x_TD, no_targets, CONFIG, totals)
    outputs = [loss, out.n_TD, out.routing.gate_TK]
    names = [name for name in leaves if ".experts." not in name]
    grads = torch.autograd.grad(
        outputs, [leaves[name] for name in names], [torch.ones_like(value) for value in outputs]
    )
    for name, grad in zip(names, grads, strict=True):
        assert torch.equal(grad, torch.zeros_like(leaves[name])), name


def test_head_loss_is_the_cross_entropy_of_its_logits() -> None:
    params = HeadParams.read(store(), CONFIG)
    h, targets = torch.randn(6, 8, dtype=torch.float64), torch.arange(6)
    totals = StepTotals(valid_targets=12, tokens=6, sequences=1, micro_batches=1)
    logits = head_logits(params, h, CONFIG)
    expected = F.cross_entropy(logits, targets, reduction="sum") / 12
    torch.testing.assert_close(head_loss(params, h, targets, CONFIG, totals), expected)
