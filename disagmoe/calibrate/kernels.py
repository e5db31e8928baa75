"""Kernels alone: matrix products, experts, attention, copies; and the curves through them.

Letters: R rows, K inner width, N outer width, H hidden, F expert width, E experts, B sequences,
S positions, C head width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from disagmoe.calibrate.fit import nonnegative, saturating
from disagmoe.calibrate.timing import best_s
from disagmoe.costs.calibration import FlashCurve, GemmCurve
from disagmoe.model.experts import experts_apply
from disagmoe.model.mixing import mix
from disagmoe.model.norm import rms_norm
from disagmoe.model.params import ExpertParams
from disagmoe.units import MIB

_SHARPNESS = 2.0
_LAUNCHES = 9
"""Kernels of the experts together, as the presets count them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is measured; large enough to keep the device busy, small enough for a few seconds."""

    rows: tuple[int, ...]
    inner: tuple[int, ...]
    outer: int
    lengths: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dims: tuple[int, ...]
    pairs: tuple[int, ...]
    """Of a token and an expert, for each expert."""
    hidden: int
    widths: tuple[int, ...]
    experts: int
    copied_bytes: int
    """More than caches hold."""
    normed: tuple[int, int]
    """Rows and width of a norm."""


CPU_SIZES = Sizes(
    rows=(512, 2048),
    inner=(128, 256, 512, 1024),
    outer=1024,
    lengths=(256, 512, 1024, 2048),
    heads=4,
    kv_heads=1,
    head_dims=(64, 128),
    pairs=(64, 256, 1024),
    hidden=256,
    widths=(160, 640),
    experts=8,
    copied_bytes=128 * MIB,
    normed=(2048, 256),
)
CUDA_SIZES = Sizes(
    rows=(4096, 16384),
    inner=(512, 1024, 2048, 4096, 8192),
    outer=8192,
    lengths=(1024, 2048, 4096, 8192),
    heads=32,
    kv_heads=4,
    head_dims=(64, 128),
    pairs=(128, 512, 2048),
    hidden=4096,
    widths=(768, 1536),
    experts=8,
    copied_bytes=2048 * MIB,
    normed=(16384, 4096),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What kernels have shown."""

    peak_flops: float
    """The fastest matrix product."""
    dense: GemmCurve
    grouped: GemmCurve
    flash: tuple[FlashCurve, ...]
    flash_backward: float
    memory_share: float
    """Rate of a norm, which reads and writes its rows once as the cost model counts it, over that
    of a copy: kernels that move data also convert and compute."""
    kernel_s: float


def copied_bytes_per_s(sizes: Sizes, device: torch.device) -> float:
    """Bytes that a copy reads and writes, per second."""
    source = torch.zeros(sizes.copied_bytes // 4, device=device)
    target = torch.empty_like(source)
    return 2 * sizes.copied_bytes / best_s(lambda: target.copy_(source), device)


def peak_flops(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> float:
    """FLOPs per second of the fastest matrix product."""
    return max(max(_products(sizes, dtype, device, rows).values()) for rows in sizes.rows)


def measure_kernels(
    sizes: Sizes, dtype: torch.dtype, device: torch.device, memory_bytes_per_s: float
) -> Kernels:
    """Measure all of them in `dtype`."""
    rates = [_products(sizes, dtype, device, rows) for rows in sizes.rows]
    peak = max(max(by_inner.values()) for by_inner in rates)
    # few rows are slower because weights are read, which the cost model has apart
    share, half_width = saturating(list(rates[-1]), list(rates[-1].values()), peak)
    share_moved = _normed_bytes_per_s(sizes, dtype, device) / memory_bytes_per_s
    one = torch.zeros(1, device=device)
    kernel_s = best_s(lambda: one.add_(1.0), device)
    flash, backward = _attention(sizes, dtype, device, peak)
    return Kernels(
        peak_flops=peak,
        dense=GemmCurve(share=min(share, 1.0), half_width=half_width, sharpness=_SHARPNESS),
        grouped=_experts(sizes, dtype, device, peak, share_moved * memory_bytes_per_s),
        flash=flash,
        flash_backward=backward,
        memory_share=share_moved,
        kernel_s=kernel_s,
    )


def _normed_bytes_per_s(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> float:
    rows, width = sizes.normed
    x_RH = _random(dtype, device, rows, width)
    weight_H = torch.ones(width, dtype=dtype, device=device)
    moved = 2 * rows * width * dtype.itemsize
    return moved / best_s(lambda: rms_norm(x_RH, weight_H, 1e-6), device)


def _products(
    sizes: Sizes, dtype: torch.dtype, device: torch.device, rows: int
) -> dict[int, float]:
    """FLOPs per second by inner width."""
    found = {}
    for inner in sizes.inner:
        x_RK = torch.randn(rows, inner, device=device).to(dtype)
        w_NK = torch.randn(sizes.outer, inner, device=device).to(dtype)
        out_RN = torch.empty(rows, sizes.outer, dtype=dtype, device=device)
        call = _product(x_RK, w_NK, out_RN)
        found[inner] = 2.0 * rows * inner * sizes.outer / best_s(call, device)
    return found


def _product(
    x_RK: torch.Tensor, w_NK: torch.Tensor, out_RN: torch.Tensor
) -> Callable[[], torch.Tensor]:
    return lambda: torch.mm(x_RK, w_NK.T, out=out_RN)


def _experts(
    sizes: Sizes,
    dtype: torch.dtype,
    device: torch.device,
    peak: float,
    memory_bytes_per_s: float,
) -> GemmCurve:
    """Compute at the peak, elements moved once at memory rate, and a constant, as a mixture."""
    compute, moved, times = [], [], []
    for width in sizes.widths:
        params = ExpertParams(
            _random(dtype, device, sizes.experts, 2 * width, sizes.hidden),
            _random(dtype, device, sizes.experts, sizes.hidden, width),
        )
        for pairs in sizes.pairs:
            count = pairs * sizes.experts
            rows_RH = _random(dtype, device, count, sizes.hidden)
            row_P = torch.arange(count, device=device)
            expert_P = row_P % sizes.experts
            gate_P = torch.rand(count, device=device)
            call = _apply(params, rows_RH, row_P, expert_P, gate_P)
            times.append(best_s(call, device))
            compute.append(2 * count * 3 * sizes.hidden * width / peak)
            elements = (sizes.hidden + width) * count
            moved.append(elements * dtype.itemsize / memory_bytes_per_s)
    inverse_share, factor, _ = nonnegative([compute, moved, [1.0] * len(times)], times)
    return GemmCurve(
        share=min(1.0, 1 / inverse_share) if inverse_share else 1.0,
        sharpness=_SHARPNESS,
        moved=factor,
        launches=_LAUNCHES,
    )


def _apply(
    params: ExpertParams,
    rows_RH: torch.Tensor,
    row_P: torch.Tensor,
    expert_P: torch.Tensor,
    gate_P: torch.Tensor,
) -> Callable[[], object]:
    return lambda: experts_apply(params, rows_RH, row_P, expert_P, gate_P)


def _random(dtype: torch.dtype, device: torch.device, *shape: int) -> torch.Tensor:
    return (0.1 * torch.randn(*shape, device=device)).to(dtype)


def _attention(
    sizes: Sizes, dtype: torch.dtype, device: torch.device, peak: float
) -> tuple[tuple[FlashCurve, ...], float]:
    """Curves by head width, and the rate of the backward over the forward's, whose hardware FLOPs
    are 2.5 times as many (see `costs/flops.py`)."""
    curves, ratios = [], []
    for width in sizes.head_dims:
        rates = {}
        for length in sizes.lengths:
            forward_s, both_s = _mix_s(sizes, dtype, device, width, length)
            work = 4.0 * sizes.heads * width * length * (length + 1) / 2
            rates[length] = work / forward_s
            ratios.append(2.5 * forward_s / max(both_s - forward_s, forward_s))
        share, half_length = saturating(list(rates), list(rates.values()), peak)
        curves.append(FlashCurve(head_dim=width, share=share, half_length=half_length))
    return tuple(curves), median(ratios)


def _mix_s(
    sizes: Sizes, dtype: torch.dtype, device: torch.device, width: int, length: int
) -> tuple[float, float]:
    """Seconds of a sequence's attention forward, and of forward and backward."""
    q, k, v = (
        _random(dtype, device, 1, heads, length, width).requires_grad_()
        for heads in (sizes.heads, sizes.kv_heads, sizes.kv_heads)
    )
    ones = torch.ones(1, sizes.heads, length, width, dtype=dtype, device=device)

    def forward() -> torch.Tensor:
        return mix(q, k, v, scale=width**-0.5)

    def both() -> None:
        torch.autograd.grad(forward(), (q, k, v), ones)

    return best_s(forward, device), best_s(both, device)
