"""A Hugging Face Transformers model of the same shape, with the same weights."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch

from disagmoe.config.model import ModelConfig
from disagmoe.errors import ConfigError
from disagmoe.model.hf_names import hf_names


def check_transformers() -> str:
    """Return the version of Transformers. Raises ConfigError where it is not installed, or too
    old."""
    try:
        transformers = import_module("transformers")
    except ImportError:
        raise ConfigError(
            "Hugging Face Transformers is not installed; install it with: "
            "pip install 'disagmoe[hf]'"
        ) from None
    version = str(transformers.__version__)
    if int(version.partition(".")[0]) < 5:
        raise ConfigError(
            f"Transformers {version} has no choice of expert implementations; install 5 or newer "
            "with: pip install 'disagmoe[hf]'"
        )
    return version


def hf_model(config: ModelConfig, *, attention: str, experts: str) -> Any:
    """Return a causal language model in fp32 with random weights, no sliding window and no
    balancing loss."""
    transformers = import_module("transformers")  # not installed where types are checked
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
        "experts_implementation": experts,
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


@torch.no_grad()
def load_into_hf(
    model: torch.nn.Module, store: Mapping[str, torch.Tensor], config: ModelConfig
) -> None:
    """Copy a whole model's `store` into a Transformers model; it must fill every parameter."""
    parameters = dict(model.named_parameters())
    table = hf_names(config)
    if set(table.values()) != set(parameters) or set(table) != set(store):
        left = set(table.values()) ^ set(parameters) | set(table) ^ set(store)
        raise AssertionError(f"without a counterpart: {', '.join(sorted(left))}")
    for ours, theirs in table.items():
        parameters[theirs].copy_(store[ours])
