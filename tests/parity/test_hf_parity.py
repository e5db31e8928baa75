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
from disagmoe.model.hf_names import hf_names
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

    theirs = hf_model(config, attention=attention, experts="eager")
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
