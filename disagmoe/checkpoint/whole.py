"""All weights of a checkpoint as one process holds them."""

import torch

from disagmoe.checkpoint.find import Found
from disagmoe.checkpoint.load import Wanted, load
from disagmoe.checkpoint.slices import Kind, Slice
from disagmoe.config.model import ModelConfig
from disagmoe.model.partition import balance_tensors, model_tensors
from disagmoe.model.precision import wide


def whole_store(found: Found, model: ModelConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the weights in `dtype`, and balance biases in the wide type, by local name.

    Raises CheckpointError where the checkpoint is of another model, lacks something, or is damaged.
    """
    kinds = (
        (model_tensors(model), dtype),
        (balance_tensors(model, range(model.layers)), wide(dtype)),
    )
    store: dict[str, torch.Tensor] = {}
    wanted: list[Wanted] = []
    for tensors, own in kinds:
        for local in tensors:
            store[local.name] = torch.empty(local.shape, dtype=own)
            for name, view in local.split(store[local.name]).items():
                cut = Slice(name, tuple(view.shape), 0, view.numel())
                wanted.append(Wanted(cut, Kind.WEIGHT, view.view(-1)))
    load(found.place, found.manifest, wanted)
    return store
