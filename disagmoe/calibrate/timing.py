"""How long a call takes on a device."""

import time
from collections.abc import Callable

import torch

_LEAST_CALLS = 3


def best_s(call: Callable[[], object], device: torch.device, budget_s: float = 0.1) -> float:
    """Return the shortest of several calls of `call`, in seconds, after one to warm up: whatever
    else the machine does only makes it slower. They take `budget_s` together, and are 3 at least.
    """
    call()
    best, calls = float("inf"), 0
    end_s = time.perf_counter() + budget_s
    while calls < _LEAST_CALLS or time.perf_counter() < end_s:
        _synchronize(device)
        began_s = time.perf_counter()
        call()
        _synchronize(device)
        best = min(best, time.perf_counter() - began_s)
        calls += 1
    return best


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
