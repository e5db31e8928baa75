"""What a link between two GPUs of one machine carries."""

import time

import torch

from disagmoe.calibrate.links import LinkRate
from disagmoe.units import KIB, MIB

_SMALL, _LARGE = KIB, 256 * MIB
_SMALL_TURNS, _LARGE_TURNS = 100, 5


def measure_devices(
    first: torch.device, second: torch.device, *, large_bytes: int = _LARGE
) -> LinkRate:
    """Measure copies from one device to the other: NVLink between GPUs that have it, else PCIe."""

    def copy_s(nbytes: int) -> float:
        source = torch.zeros(nbytes, dtype=torch.uint8, device=first)
        target = torch.zeros(nbytes, dtype=torch.uint8, device=second)
        _settle(first, second)
        began_s = time.perf_counter()
        target.copy_(source)
        _settle(first, second)
        return time.perf_counter() - began_s

    small_s = min(copy_s(_SMALL) for _ in range(_SMALL_TURNS))
    large_s = min(copy_s(large_bytes) for _ in range(_LARGE_TURNS))
    return LinkRate(bytes_per_s=large_bytes / large_s, latency_s=small_s)


def _settle(*devices: torch.device) -> None:
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
