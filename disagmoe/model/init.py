"""Initial parameters, a function of the seed and the global name alone."""

import hashlib
from collections.abc import Iterable

import torch

from disagmoe.model import names
from disagmoe.model.partition import LocalTensor


def initial_value(name: str, shape: names.Shape, *, seed: int, std: float) -> torch.Tensor:
    """Return the initial fp32 value of the global parameter `name`, on the CPU.

    Norms are 1, biases 0, all others normal(0, std). The generator is seeded by a hash of `seed`
    and `name`, so that every partition, precision and device starts from the same numbers.
    """
    if names.is_norm(name):
        return torch.ones(shape)
    if names.starts_at_zero(name):
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed(seed_of(seed, name))
    return torch.empty(shape, dtype=torch.float32).normal_(0.0, std, generator=generator)


def seed_of(seed: int, name: str) -> int:
    """Return a seed for the random numbers that are called `name`, in a run that has `seed`."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def initial_store(
    tensors: Iterable[LocalTensor],
    *,
    seed: int,
    std: float,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> dict[str, torch.Tensor]:
    """Return a worker's initial tensors by local name; drawn in fp32, then cast to `dtype`."""
    store: dict[str, torch.Tensor] = {}
    for local in tensors:
        tensor = torch.empty(local.shape, dtype=dtype, device=device)
        for part in local.parts:
            part.view(tensor).copy_(initial_value(part.name, part.shape, seed=seed, std=std))
        store[local.name] = tensor
    return store
