"""Logits and every gradient equal Transformers' on tiny random models, fp32."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from disagmoe.bench.hf_model import hf_model, load_into_hf
from disagmoe.config.model import ModelConfig
from disagmoe.config.train import LossConfig
from disagmoe.hf.tensors import hf_tensors
from disagmoe.model.init import initial_store
from disagmoe.model.losses import IGNORED, StepTotals, micro_batch_balance_loss
from disagmoe.model.params import RouterParams
from disagmoe.model.partition import balance_tensors, model_tensors
from disagmoe.model.router import Rule, route
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
    "experts": 12,
    "top_k": 3,
    "expert_width": 20,
    "init_std": 0.15,
}
LATENT: dict[str, Any] = {
    "kv_heads": 4,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "shared_width": 20,
}
YARN = {"factor": 4.0, "original_length": 8, "mscale": 0.707, "mscale_all_dim": 0.5}
V2: dict[str, Any] = LATENT | {"family": "deepseek_v2", "norm_topk_prob": False}
V3: dict[str, Any] = LATENT | {
    "family": "deepseek_v3",
    "expert_groups": 3,
    "top_groups": 2,
    "routed_scaling": 2.5,
}
OSS: dict[str, Any] = {"family": "gpt_oss", "head_dim": 16, "kv_heads": 1, "layers": 3}
WINDOW = {"window": 4, "full_attention_every": 2}
CASES: dict[str, dict[str, Any]] = {
    "mixtral": {"family": "mixtral", "experts": 6, "top_k": 2},
    "mixtral-square-experts": {"family": "mixtral", "expert_width": 32, "norm_eps": 1e-5},
    "mixtral-tied-no-gqa": {"family": "mixtral", "kv_heads": 4, "tied_embeddings": True},
    "qwen3": {"family": "qwen3_moe", "top_k": 3, "head_dim": 16, "rope_theta": 1e6},
    "qwen3-not-renormalised": {"family": "qwen3_moe", "norm_topk_prob": False},
    "qwen3-tied-unaligned": {"family": "qwen3_moe", "expert_width": 7, "tied_embeddings": True},
    "olmoe": {"family": "olmoe", "norm_topk_prob": False},
    "olmoe-square-no-gqa": {"family": "olmoe", "kv_heads": 4, "expert_width": 32},
    "qwen2": {"family": "qwen2_moe", "shared_width": 28, "norm_topk_prob": False},
    "deepseek-v2": V2,
    "deepseek-v2-q-lora-groups-dense-square": V2
    | {
        "q_lora_rank": 10,
        "expert_groups": 4,
        "top_groups": 2,
        "dense_layers": 1,
        "dense_width": 24,
        "routed_scaling": 16.0,
        "expert_width": 32,
        "shared_width": 64,
        "layers": 3,
    },
    "deepseek-v2-yarn": V2 | {"yarn": YARN},
    "deepseek-v3": V3,
    "deepseek-v3-q-lora-dense-square": V3
    | {
        "q_lora_rank": 10,
        "dense_layers": 2,
        "dense_width": 24,
        "expert_width": 32,
        "shared_width": 32,
        "layers": 3,
        "norm_topk_prob": False,
    },
    "deepseek-v3-yarn-wide-values": V3 | {"yarn": YARN | {"truncate": False}, "head_dim": 16},
    "gpt-oss": OSS | WINDOW,
    "gpt-oss-square-yarn": OSS
    | WINDOW
    | {"expert_width": 32, "yarn": {"factor": 4.0, "original_length": 8, "truncate": False}},
    "gpt-oss-no-windows": OSS | {"kv_heads": 2},
}
EAGER_ONLY = ("gpt-oss",)


def models() -> list[tuple[str, str]]:
    return [
        (case, attention)
        for case in CASES
        for attention in ("eager", "sdpa")
        if attention == "eager" or not case.startswith(EAGER_ONLY)
    ]


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


def whole_store(config: ModelConfig) -> dict[str, torch.Tensor]:
    """Parameters of a random network whose vectors are all random too, so that a forgotten one
    shows, and its balance biases."""
    layers = range(config.layers)
    tensors = (*model_tensors(config), *balance_tensors(config, layers))
    store = initial_store(tensors, seed=3, std=config.init_std, dtype=torch.float32)
    generator = torch.Generator().manual_seed(5)
    for name in sorted(store):
        if store[name].ndim == 1 or name.endswith("bias"):
            store[name] += 0.2 * torch.randn(store[name].shape, generator=generator)
    return store


@pytest.mark.parametrize(("case", "attention"), models())
def test_logits_and_every_gradient_equal(
    case: str, attention: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ModelConfig(**(BASE | CASES[case]))
    store = whole_store(config)
    generator = torch.Generator().manual_seed(6)
    tokens = torch.randint(config.vocab_size, (3, 14), generator=generator)
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    targets[0, :5] = IGNORED

    theirs = hf_model(config, attention=attention, experts="eager")
    load_into_hf(theirs, store, config)
    their_logits = theirs(input_ids=inputs).logits
    loss = F.cross_entropy(their_logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    loss.backward()

    our_logits = logits(store, config, inputs)
    step = reference_step(store, config, [MicroBatch(inputs, targets)], LossConfig())
    grads = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in theirs.named_parameters()
    }
    their_grads = {
        piece.name: piece.view(grads[tensor.name])
        for tensor in hf_tensors(config, "fused")
        if tensor.name in grads
        for piece in tensor.pieces
    }
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
    routing = route(RouterParams(torch.eye(6)), scores, Rule(top_k=3, renormalise=True))
    totals = StepTotals(valid_targets=1, tokens=40, sequences=1, micro_batches=1)
    ours = micro_batch_balance_loss(routing, routing.count_choices(), 40, totals)
    theirs = load_balancing_loss_func((scores,), num_experts=6, top_k=3)
    torch.testing.assert_close(3 * ours, theirs)
