"""Counts against what publishers say, against Transformers, and against our own model."""

import math

import pytest

from disagmoe.config.starter import STARTER
from disagmoe.costs.parameters import (
    active_parameters,
    attention_side_parameters,
    expert_parameters,
    total_parameters,
)
from disagmoe.model import names
from tests.unit.costs.public_models import MODELS, PUBLISHED_B


@pytest.mark.parametrize("name", PUBLISHED_B)
def test_published_totals(name):
    total, active = PUBLISHED_B[name]
    model = MODELS[name]
    assert total_parameters(model) / 1e9 == pytest.approx(total, rel=0.012)
    # publishers count embedding and head differently
    counts = [active_parameters(model, vocabularies=n) / 1e9 for n in (0, 1, 2)]
    assert min(abs(count / active - 1) for count in counts) < 0.06


def test_all_public_models_are_published():
    assert set(MODELS) == set(PUBLISHED_B)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_our_own_model_has_as_many(family):
    model = STARTER.model.model_copy(update={"family": family})
    shapes = names.global_shapes(model)
    assert total_parameters(model) == sum(map(math.prod, shapes.values()))
    layer = {**names.attention_shapes(model, 1)}
    assert attention_side_parameters(model) == sum(map(math.prod, layer.values()))
    expert = names.expert_shapes(model, 1, 2)
    assert expert_parameters(model) == sum(map(math.prod, expert.values()))
    tied = model.model_copy(update={"tied_embeddings": True})
    shapes = names.global_shapes(tied)
    assert total_parameters(tied) == sum(map(math.prod, shapes.values()))


def hf_config(model):
    import transformers

    common = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "num_experts_per_tok": model.top_k,
        "tie_word_embeddings": model.tied_embeddings,
    }
    dense = {"first_k_dense_replace": model.dense_layers, "intermediate_size": model.dense_width}
    shared = {"n_shared_experts": model.shared_width // model.expert_width}
    routed = {"n_routed_experts": model.experts, "moe_intermediate_size": model.expert_width}
    latent = {
        "q_lora_rank": model.q_lora_rank or None,
        "kv_lora_rank": model.kv_lora_rank,
        "qk_nope_head_dim": model.qk_nope_head_dim,
        "qk_rope_head_dim": model.qk_rope_head_dim,
        "v_head_dim": model.head_dim,
    }
    head = {"head_dim": model.head_dim}
    expert_width = {"intermediate_size": model.expert_width}
    experts = {"num_experts": model.experts}
    local = {"num_local_experts": model.experts}
    moe_width = {"moe_intermediate_size": model.expert_width}
    match model.family:
        case "mixtral":
            return transformers.MixtralConfig(**common, **head, **expert_width, **local)
        case "qwen3_moe":
            return transformers.Qwen3MoeConfig(**common, **head, **moe_width, **experts)
        case "olmoe":
            return transformers.OlmoeConfig(**common, **expert_width, **experts)
        case "gpt_oss":
            return transformers.GptOssConfig(**common, **head, **expert_width, **local)
        case "qwen2_moe":
            width = {"shared_expert_intermediate_size": model.shared_width}
            return transformers.Qwen2MoeConfig(**common, **moe_width, **experts, **width)
        case "glm4_moe":
            bias = {"attention_bias": True}
            return transformers.Glm4MoeConfig(**common, **head, **dense, **shared, **routed, **bias)
        case "deepseek_v2":
            return transformers.DeepseekV2Config(**common, **dense, **shared, **routed, **latent)
        case "deepseek_v3":
            return transformers.DeepseekV3Config(**common, **dense, **shared, **routed, **latent)
    raise AssertionError(model.family)


@pytest.mark.hf
@pytest.mark.parametrize("name", sorted(set(MODELS) - {"deepseek-moe-16b"}))
def test_transformers_has_exactly_as_many(name):
    """In full size, on torch's meta device. (It does not know the first DeepSeek.) GLM-4.5's q/k
    norms are left out on both sides."""
    import torch
    from transformers import AutoModelForCausalLM

    model = MODELS[name]
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(hf_config(model))
    assert total_parameters(model) == sum(p.numel() for p in built.parameters())
