"""How many FLOPs of matrix products this machine does in a second."""

import time

import torch

from disagmoe.config.run import RunConfig

_MEASURE_S = 0.3
_ROWS = 1024


def gemm_flops_per_s(config: RunConfig, dtype: torch.dtype, threads: int) -> float:
    """Return the best rate of this machine over the forward products of the model's matrices with
    1024 rows each, on `threads` threads of this process."""
    model = config.model
    shapes = {
        (model.hidden, model.heads * model.head_dim),
        (model.hidden, 2 * model.expert_width),
        (model.expert_width, model.hidden),
        (model.hidden, model.vocab_size),
    }
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return max(_rate(inner, outer, dtype) for inner, outer in sorted(shapes))
    finally:
        torch.set_num_threads(before)


def _rate(inner: int, outer: int, dtype: torch.dtype) -> float:
    """The best call of some: whatever else the machine does only makes it slower."""
    x = torch.randn(_ROWS, inner).to(dtype)
    weight = torch.randn(outer, inner).to(dtype)
    out = torch.empty(_ROWS, outer, dtype=dtype)
    best_s = float("inf")
    end_s = time.perf_counter() + _MEASURE_S
    while time.perf_counter() < end_s:
        began_s = time.perf_counter()
        torch.mm(x, weight.T, out=out)
        best_s = min(best_s, time.perf_counter() - began_s)
    return 2.0 * _ROWS * inner * outer / best_s
