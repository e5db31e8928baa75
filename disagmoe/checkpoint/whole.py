"""Weights of a checkpoint as one process holds them: all, or those of one layer or both ends."""

import math
from collections.abc import Sequence

import torch

from disagmoe.checkpoint.find import Found
from disagmoe.checkpoint.load import Wanted, load
from disagmoe.checkpoint.slices import Kind, Slice
from disagmoe.config.model import ModelConfig
from disagmoe.model.partition import (
    LocalTensor,
    balance_tensors,
    end_tensors,
    layer_tensors,
    model_tensors,
)
from disagmoe.model.precision import wide

_Typed = tuple[tuple[Sequence[LocalTensor], torch.dtype], ...]


def whole_store(found: Found, model: ModelConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the weights in `dtype`, and balance biases in the wide type, by local name.

    Raises CheckpointError where the checkpoint is of another model, lacks something, or is damaged.
    """
    balance = balance_tensors(model, range(model.layers))
    return _store(found, ((model_tensors(model), dtype), (balance, wide(dtype))))


def layer_store(
    found: Found, model: ModelConfig, dtype: torch.dtype, layer: int
) -> dict[str, torch.Tensor]:
    """Return what `whole_store` has of one layer, of which alone the files are read."""
    return _store(found, _of_layer(model, dtype, layer))


def end_store(found: Found, model: ModelConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return what `whole_store` has of embedding, final norm and LM head."""
    return _store(found, ((end_tensors(model), dtype),))


def layer_bytes(model: ModelConfig, dtype: torch.dtype, layer: int) -> int:
    """Return the size of a `layer_store`."""
    return _size(_of_layer(model, dtype, layer))


def end_bytes(model: ModelConfig, dtype: torch.dtype) -> int:
    """Return the size of an `end_store`; with those of all layers it is that of `whole_store`."""
    return _size(((end_tensors(model), dtype),))


def _of_layer(model: ModelConfig, dtype: torch.dtype, layer: int) -> _Typed:
    balance = balance_tensors(model, (layer,))
    return ((layer_tensors(model, layer), dtype), (balance, wide(dtype)))


def _size(typed: _Typed) -> int:
    return sum(
        math.prod(local.shape) * dtype.itemsize for tensors, dtype in typed for local in tensors
    )


def _store(found: Found, typed: _Typed) -> dict[str, torch.Tensor]:
    store: dict[str, torch.Tensor] = {}
    wanted: list[Wanted] = []
    for tensors, dtype in typed:
        for local in tensors:
            store[local.name] = torch.empty(local.shape, dtype=dtype)
            for name, view in local.split(store[local.name]).items():
                cut = Slice(name, tuple(view.shape), 0, view.numel())
                wanted.append(Wanted(cut, Kind.WEIGHT, view.view(-1)))
    load(found.place, found.manifest, wanted)
    return store
