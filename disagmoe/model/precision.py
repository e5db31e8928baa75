"""Which numbers are kept wider than the activations."""

import torch

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
"""Types of weights and activations by the names of `train.precision`."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """Type of norms, router, loss and sums beside activations of `dtype`: fp64 for fp64, else fp32.

    Megatron-Core and Transformers compute softmax and norm statistics in fp32 for the same reason:
    with 8 bits of mantissa a sum of 256 router terms is off by several per cent.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


_PIECE = 2**18
"""Elements that stay in the cache of a core."""


@torch.no_grad()
def add_to(total: torch.Tensor, term: torch.Tensor) -> None:
    """Add `term`, of any type, to `total` in place; the bits are those of `total += term`.

    On the CPU torch first casts all of a narrower term into fresh memory, which takes several times
    as long as the sum itself; a piece at a time stays in the cache.
    """
    if total.dtype == term.dtype or total.device.type != "cpu" or total.numel() <= _PIECE:
        total.add_(term)
        return
    rows = max(1, _PIECE * len(total) // total.numel())
    for total_part, part in zip(total.split(rows), term.split(rows), strict=True):
        total_part.add_(part)
