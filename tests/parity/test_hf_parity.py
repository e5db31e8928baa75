"""Logits and every gradient equal Transformers' on tiny random models, fp32.

Transformers 5 stacks the experts of a layer in memory as we do, `gate_up_proj` [E, 2F, D] (gate
first) and `down_proj` [E, D, F]; Mixtral and Qwen3-MoE share every name.
"""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from disagmoe.config.model import ModelConfig
from disagmoe.config.train import LossConfig
from disagmoe.model import names, partition
from disagmoe.model.init import initial_store
from disagmoe.model.losses import IGNORED, StepTotals, micro_batch_balance_loss
from disagmoe.model.partition import model_tensors
from disagmoe.model.router import route
from disagmoe.model.transformer import MicroBatch, logits, reference_step

pytestmark = pytest.mark.hf
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5

BASE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden": 32,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "experts": 6,
    "top_k": 2,
    "expert_width": 20,
    "init_std": 0.15,
}
CASES: dict[str, dict[str, Any]] = {
    "mixtral": {"family": "mixtral"},
    "mixtral-square-experts": {"family": "mixtral", "expert_width": 32, "norm_eps": 1e-5},
    "mixtral-tied-no-gqa": {"family": "mixtral", "kv_heads": 4, "tied_embeddings": True},
    "qwen3": {"family": "qwen3_moe", "top_k": 3, "head_dim": 16, "rope_theta": 1e6},
    "qwen3-not-renormalised": {"family": "qwen3_moe", "norm_topk_prob": False},
    "qwen3-tied-unaligned": {"family": "qwen3_moe", "expert_width": 7, "tied_embeddings": True},
}


_LEAVES = {
    "attn_norm": "input_layernorm",
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.o": "self_attn.o_proj",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "moe_norm": "post_attention_layernorm",
    "router": "mlp.gate",
}


def hf_names(config: ModelConfig) -> dict[str, str]:
    """Return the Transformers name of every local tensor of a whole model."""
    table = {names.EMBED: "model.embed_tokens.weight", names.FINAL_NORM: "model.norm.weight"}
    if not config.tied_embeddings:
        table[names.HEAD] = "lm_head.weight"
    for layer in range(config.layers):
        theirs = f"model.layers.{layer}"
        for leaf, hf_leaf in _LEAVES.items():
            if leaf in ("attn.q_norm", "attn.k_norm") and not names.has_qk_norm(config):
                continue
            table[names.attention_name(layer, leaf)] = f"{theirs}.{hf_leaf}.weight"
        table[partition.gate_up_name(layer)] = f"{theirs}.mlp.experts.gate_up_proj"
        table[partition.down_name(layer)] = f"{theirs}.mlp.experts.down_proj"
    return table


def load_into_hf(
    model: torch.nn.Module, store: dict[str, torch.Tensor], config: ModelConfig
) -> None:
    """Copy a whole model's `store` into a Transformers model; every parameter must be named."""
    parameters = dict(model.named_parameters())
    table = hf_names(config)
    assert set(table.values()) == set(parameters)
    assert set(table) == set(store)
    with torch.no_grad():
        for ours, theirs in table.items():
            assert parameters[theirs].shape == store[ours].shape
            parameters[theirs].copy_(store[ours])


def hf_model(config: ModelConfig, attention: str) -> Any:
    common: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "num_experts_per_tok": config.top_k,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tied_embeddings,
        "attn_implementation": attention,
        "experts_implementation": "eager",
        "sliding_window": None,
        "use_cache": False,
    }
    if config.family == "mixtral":
        settings = transformers.MixtralConfig(
            **common, num_local_experts=config.experts, intermediate_size=config.expert_width
        )
        return transformers.MixtralForCausalLM(settings)
    settings = transformers.Qwen3MoeConfig(
        **common,
        num_experts=config.experts,
        moe_intermediate_size=config.expert_width,
        norm_topk_prob=config.norm_topk_prob,
        mlp_only_layers=[],
        decoder_sparse_step=1,
    )
    return transformers.Qwen3MoeForCausalLM(settings)


def global_norm(tensors: Mapping[str, torch.Tensor]) -> float:
    return math.sqrt(sum(tensor.double().square().sum().item() for tensor in tensors.values()))


def worst_difference(
    ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]
) -> tuple[float, str]:
    """Return the largest |ours - theirs| / max(|theirs|, 1e-6 |all of theirs|), and its name."""
    floor = 1e-6 * global_norm(theirs)
    return max(
        (float((ours[name] - theirs[name]).norm()) / max(float(theirs[name].norm()), floor), name)
        for name in theirs
    )


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("case", CASES)
def test_logits_and_every_gradient_equal(
    case: str, attention: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ModelConfig(**(BASE | CASES[case]))
    store = initial_store(model_tensors(config), seed=3, std=config.init_std, dtype=torch.float32)
    generator = torch.Generator().manual_seed(5)
    for name in sorted(store):  # norms that differ from 1, so that a forgotten one shows
        if store[name].ndim == 1:
            store[name] += 0.2 * torch.randn(store[name].shape, generator=generator)
    tokens = torch.randint(config.vocab_size, (3, 14), generator=generator)
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    targets[0, :5] = IGNORED

    theirs = hf_model(config, attention)
    load_into_hf(theirs, store, config)
    their_logits = theirs(input_ids=inputs).logits
    loss = F.cross_entropy(their_logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    loss.backward()

    our_logits = logits(store, config, inputs)
    step = reference_step(store, config, [MicroBatch(inputs, targets)], LossConfig())
    parameters = dict(theirs.named_parameters())
    their_grads: dict[str, torch.Tensor] = {}
    for local in model_tensors(config):
        their_grads |= local.split(parameters[hf_names(config)[local.name]].grad)
    assert set(their_grads) == set(step.grads)

    logit_difference = float((our_logits - their_logits.detach()).norm() / our_logits.norm())
    worst, name = worst_difference(step.grads, their_grads)
    with capsys.disabled():
        print(f"\n{case}/{attention}: logits {logit_difference:.1e}, {name} {worst:.1e}")  # noqa: T201
    assert logit_difference < TOLERANCE
    assert worst < TOLERANCE
    assert float(step.loss) == pytest.approx(loss.item(), rel=TOLERANCE)


def test_balance_loss_is_a_top_k_th_of_transformers_for_one_layer() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    scores = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    routing = route(torch.eye(6), scores, top_k=3, renormalise=True)
    totals = StepTotals(valid_targets=1, tokens=40, sequences=1, micro_batches=1)
    ours = micro_batch_balance_loss(routing, routing.count_choices(), 40, totals)
    theirs = load_balancing_loss_func((scores,), num_experts=6, top_k=3)
    torch.testing.assert_close(3 * ours, theirs)
