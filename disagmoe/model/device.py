"""Between host and device: the few places where one waits for the other, and how to avoid more.

On CUDA a value that Python must know (`item`, `tolist`, a mask as index, `bincount`) stops the host
until the device has worked off its queue. A step does that in `to_host` alone.
"""

from collections.abc import Sequence

import torch


def to_host(values: torch.Tensor) -> list[int]:
    """Return integers as Python numbers; waits for the device."""
    return values.tolist()


def to_device(values: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return `values` as an int64 tensor on `device`; the copy waits for nothing."""
    return on_device(torch.tensor(values, dtype=torch.int64), device)


def on_device(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor in host memory as one on `device`; the copy waits for nothing."""
    return host if device.type != "cuda" else host.pin_memory().to(device, non_blocking=True)


def count_values(values: torch.Tensor, size: int) -> torch.Tensor:
    """Return how often each of 0 to `size` - 1 is in the int64 `values`, as int64 [size].

    bincount would ask the device for the largest one.
    """
    return values.new_zeros(size).index_add_(0, values, torch.ones_like(values))


def sum_segments(
    values_PN: torch.Tensor, counts_E: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return the sums [E, N], in `dtype`, of rows that follow each other: `counts_E` in each sum.

    Counts are taken to be right: to check them would ask the device.
    """
    return torch.segment_reduce(
        values_PN.to(dtype), "sum", lengths=counts_E, unsafe=True, initial=0
    )
