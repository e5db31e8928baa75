"""Which numbers are kept wider than the activations."""

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """Type of norms, router, loss and sums beside activations of `dtype`: fp64 for fp64, else fp32.

    Megatron-Core and Transformers compute softmax and norm statistics in fp32 for the same reason:
    with 8 bits of mantissa a sum of 256 router terms is off by several per cent.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32
