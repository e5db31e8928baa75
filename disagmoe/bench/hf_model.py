"""A Hugging Face Transformers model of the same shape, with the same weights."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch

from disagmoe.config.model import ModelConfig
from disagmoe.errors import ConfigError
from disagmoe.hf.settings import to_hf
from disagmoe.hf.tensors import hf_tensors
from disagmoe.model.partition import balance_tensors, model_tensors

_POSITIONS = 4096


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
    """Return a causal language model in fp32 with random weights and no balancing loss."""
    transformers = import_module("transformers")  # not installed where types are checked
    settings = to_hf(config, max_positions=_POSITIONS) | {"use_cache": False}
    loaded = transformers.AutoConfig.for_model(
        **settings, attn_implementation=attention, experts_implementation=experts
    )
    return transformers.AutoModelForCausalLM.from_config(loaded)


@torch.no_grad()
def load_into_hf(
    model: torch.nn.Module, store: Mapping[str, torch.Tensor], config: ModelConfig
) -> None:
    """Copy a whole model's `store` into a Transformers model; it must fill every tensor."""
    ours: dict[str, torch.Tensor] = {}
    for local in (*model_tensors(config), *balance_tensors(config, range(config.layers))):
        ours |= local.split(store[local.name])
    theirs = state_of(model)
    wanted = {tensor.name for tensor in hf_tensors(config, "fused")}
    if wanted != set(theirs):
        left = wanted ^ set(theirs)
        raise AssertionError(f"without a counterpart: {', '.join(sorted(left))}")
    for tensor in hf_tensors(config, "fused"):
        for piece in tensor.pieces:
            piece.view(theirs[tensor.name]).copy_(ours[piece.name])


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters of a Transformers model, and what else it saves, by name; a tied head
    is left out."""
    return dict(model.named_parameters()) | dict(_saved_buffers(model))


def _saved_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    saved = model.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}
