"""Small networks of every family, and their files as Transformers would save them, without it."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from disagmoe.config.model import ModelConfig
from disagmoe.hf.settings import to_hf
from disagmoe.hf.tensors import Fusion, hf_tensors
from disagmoe.hf.verify import tiny_models

MODELS = dict(tiny_models())
TIED = MODELS["mixtral/20"].model_copy(update={"tied_embeddings": True})


def ids(model: ModelConfig, fusion: Fusion) -> dict[str, torch.Tensor]:
    """Tensors whose elements are all different numbers."""
    found: dict[str, torch.Tensor] = {}
    first = 1
    for tensor in hf_tensors(model, fusion):
        count = torch.Size(tensor.shape).numel()
        found[tensor.name] = torch.arange(first, first + count).view(tensor.shape).float()
        first += count
    return found


def write(
    folder: Path,
    model: ModelConfig,
    fusion: Fusion = "per_expert",
    tensors: dict[str, torch.Tensor] | None = None,
    **settings: Any,
) -> Path:
    """Write a model of `ids`, or of given tensors; `settings` are added to its config.json."""
    folder.mkdir()
    content = to_hf(model, max_positions=64) | settings
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "tokenizer.json").write_text('{"a": 1}')
    save_file(ids(model, fusion) if tensors is None else tensors, folder / "model.safetensors")
    return folder
