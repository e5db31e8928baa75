"""The global gradient norm, and the factor that brings it down to its limit."""

import math
from collections.abc import Mapping

import torch

# A CPU reduction of up to 32768 elements stays on one thread (ATen's grain size), so that the
# result does not depend on the number of threads.
_CPU_CHUNK = 2**15
_DEVICE_CHUNK = 2**24


def squared_norm(grads: Mapping[str, torch.Tensor]) -> float:
    """Return the sum of squares of all gradients, added in fp64 in the order of their names.

    It is not finite exactly when a gradient is not, as squares of fp32 values cannot overflow fp64.
    """
    if not grads:
        return 0.0
    squares = torch.stack([_squares(grads[name]) for name in sorted(grads)])
    return float(sum(squares.tolist()))


def clip_scale(norm: float, max_norm: float) -> float:
    """Return the factor for all gradients: max_norm / norm above the limit, else 1.

    `max_norm` 0 turns clipping off. Raises ValueError for a norm that is not finite: such a step is
    skipped, never scaled.
    """
    if not math.isfinite(norm):
        raise ValueError(f"the gradient norm is {norm}; a step that is not finite must be skipped")
    return 1.0 if max_norm == 0 or norm <= max_norm else max_norm / norm


def all_finite(flat: torch.Tensor) -> bool:
    """Return whether no element is an infinity or a NaN."""
    # On CPU one pass at the speed of memory, where isfinite() or a sum in fp64 take 15 times as
    # long; NaN is the smallest and the largest of all.
    return not len(flat) or all(math.isfinite(bound.item()) for bound in torch.aminmax(flat))


def nonfinite_names(grads: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the sorted names of gradients that hold an infinity or a NaN."""
    return sorted(name for name, grad in grads.items() if not math.isfinite(_squares(grad).item()))


def _squares(grad: torch.Tensor) -> torch.Tensor:
    chunk = _CPU_CHUNK if grad.device.type == "cpu" else _DEVICE_CHUNK
    total = torch.zeros((), dtype=torch.float64, device=grad.device)
    for piece in torch.split(grad.reshape(-1), chunk):
        total += piece.double().square().sum()  # not in place: fp64 is not copied by double()
    return total
