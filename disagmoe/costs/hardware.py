"""Machines: what data sheets promise of one worker, and where each number is from.

Rates are per second, of one direction where there are two; floating-point peaks are dense (vendors
also print twice as much, with structured sparsity). A worker is one GPU, or one core of the CPU.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from disagmoe.errors import ConfigError
from disagmoe.units import GB, TERA

Precision = Literal["fp32", "bf16", "fp64"]
ELEMENT_BYTES: dict[Precision, int] = {"bf16": 2, "fp32": 4, "fp64": 8}
"""Bytes of a weight or an activation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One worker's machine."""

    name: str
    bf16_flops: float
    fp32_flops: float
    """Without TF32, which training turns off."""
    memory_bytes: int
    """What a program can have of it."""
    memory_bytes_per_s: float
    multiprocessors: int
    """What kernels that run side by side divide among themselves (SMs); cores of a CPU."""
    nvlink_bytes_per_s: float
    """To all workers of the same node together."""
    nic_bytes_per_s: float
    """Of one network card."""
    sources: Mapping[str, str]
    """Origin of each number, by field."""

    def peak_flops(self, precision: Precision) -> float:
        """FLOPs per second that matrices of `precision` have at best. Raises ConfigError for a
        precision without a known peak."""
        match precision:
            case "bf16":
                return self.bf16_flops
            case "fp32":
                return self.fp32_flops
            case "fp64":
                raise ConfigError(
                    'train.precision = "fp64": no rates are known for it; use "bf16" or "fp32"'
                )


_CONFIGURATOR = "aiconfigurator-core 1.3, systems/{}_sxm.yaml"
_TRACE = "device properties in train.json of github.com/deepseek-ai/profile-data"
_VISIBLE = f"as the H800's, which also has 80 GB ({_TRACE})"
_NOTES = "DeepSeek-V3 hardware report, arXiv:2505.09343"
_MEGASCALE = "testbed of MegaScale-Infer, arXiv:2504.02263"
_RECALLED = "vendor's data sheet, from memory"


def _sources(bf16: str, **others: str) -> dict[str, str]:
    """The source of the bf16 peak is that of all numbers but `others`."""
    fields = (
        "bf16_flops",
        "fp32_flops",
        "memory_bytes",
        "memory_bytes_per_s",
        "multiprocessors",
        "nvlink_bytes_per_s",
        "nic_bytes_per_s",
    )
    return dict.fromkeys(fields, bf16) | others


A100 = Hardware(
    name="a100",
    bf16_flops=312 * TERA,
    fp32_flops=19.5 * TERA,
    memory_bytes=84_940 * 10**6,
    memory_bytes_per_s=2040 * GB,
    multiprocessors=108,
    nvlink_bytes_per_s=300 * GB,
    nic_bytes_per_s=25 * GB,
    sources=_sources(
        _CONFIGURATOR.format("a100"),
        fp32_flops=_RECALLED,
        memory_bytes=_VISIBLE,
        nic_bytes_per_s="one ConnectX-6 of 200 Gbit/s per GPU (MegaScale, arXiv:2402.15627)",
    ),
)
"""A100 SXM, 80 GB."""

H100 = Hardware(
    name="h100",
    bf16_flops=989 * TERA,
    fp32_flops=67 * TERA,
    memory_bytes=84_940 * 10**6,
    memory_bytes_per_s=3350 * GB,
    multiprocessors=132,
    nvlink_bytes_per_s=450 * GB,
    nic_bytes_per_s=50 * GB,
    sources=_sources(_CONFIGURATOR.format("h100"), fp32_flops=_RECALLED, memory_bytes=_VISIBLE),
)
"""H100 SXM, 80 GB."""

H800 = Hardware(
    name="h800",
    bf16_flops=989 * TERA,
    fp32_flops=67 * TERA,
    memory_bytes=84_940 * 10**6,
    memory_bytes_per_s=3350 * GB,
    multiprocessors=132,
    nvlink_bytes_per_s=200 * GB,
    nic_bytes_per_s=50 * GB,
    sources=_sources(
        "as H100 SXM; MegaScale-MoE (arXiv:2505.11432) has 989 TFLOP/s and 3.4 TB/s",
        fp32_flops=f"as H100 SXM: {_RECALLED}",
        memory_bytes=_TRACE,
        multiprocessors=_TRACE,
        nvlink_bytes_per_s=f"400 GB/s both ways: {_NOTES}",
        nic_bytes_per_s=f"8 ConnectX-7 of 400 Gbit/s per node of 8: {_NOTES}",
    ),
)
"""H800 SXM, 80 GB: an H100 with a slower NVLink."""

H200 = Hardware(
    name="h200",
    bf16_flops=989 * TERA,
    fp32_flops=67 * TERA,
    memory_bytes=150_100 * 10**6,
    memory_bytes_per_s=4800 * GB,
    multiprocessors=132,
    nvlink_bytes_per_s=450 * GB,
    nic_bytes_per_s=50 * GB,
    sources=_sources(
        _CONFIGURATOR.format("h200"),
        fp32_flops=_RECALLED,
        memory_bytes="139.8 GiB visible of 141 GB",
    ),
)
"""H200 SXM, 141 GB."""

H20 = Hardware(
    name="h20",
    bf16_flops=148 * TERA,
    fp32_flops=44 * TERA,
    memory_bytes=102_000 * 10**6,
    memory_bytes_per_s=4000 * GB,
    multiprocessors=78,
    nvlink_bytes_per_s=450 * GB,
    nic_bytes_per_s=25 * GB,
    sources=_sources(
        _RECALLED,
        memory_bytes="95 GiB visible of 96, from memory",
        nvlink_bytes_per_s=f"900 GB/s both ways: {_MEGASCALE}",
        nic_bytes_per_s=f"4 cards of 400 Gbit/s per node of 8: {_MEGASCALE}",
    ),
)
"""H20 SXM, 96 GB: much memory and little compute."""

B200 = Hardware(
    name="b200",
    bf16_flops=2250 * TERA,
    fp32_flops=75 * TERA,
    memory_bytes=180_000 * 10**6,
    memory_bytes_per_s=7700 * GB,
    multiprocessors=148,
    nvlink_bytes_per_s=900 * GB,
    nic_bytes_per_s=50 * GB,
    sources=_sources(
        _CONFIGURATOR.format("b200"),
        fp32_flops=_RECALLED,
        multiprocessors=_RECALLED,
        nic_bytes_per_s="one ConnectX-7 of 400 Gbit/s per GPU; ConnectX-8 has twice as much",
    ),
)
"""B200 SXM, 180 GB."""

_MEASURED = "measured with torch 2.13 on one core of an AMD EPYC (Zen 4) at 2.6 GHz"

CPU = Hardware(
    name="cpu",
    bf16_flops=0.183 * TERA,
    fp32_flops=0.076 * TERA,
    memory_bytes=4 * GB,
    memory_bytes_per_s=24 * GB,
    multiprocessors=1,
    nvlink_bytes_per_s=12 * GB,
    nic_bytes_per_s=1.25 * GB,
    sources=_sources(
        f"fastest matrix product {_MEASURED}",
        memory_bytes="a core's share of a server with 4 GB per core",
        memory_bytes_per_s=f"a copy, {_MEASURED}",
        multiprocessors="a worker is one core",
        nvlink_bytes_per_s="a copy through memory, which reads and writes",
        nic_bytes_per_s="one card of 10 Gbit/s",
    ),
)
"""One core of a server."""

PRESETS: dict[str, Hardware] = {one.name: one for one in (A100, H100, H800, H20, H200, B200, CPU)}


def hardware(name: str) -> Hardware:
    """The preset `name`. Raises ConfigError, with all names, where there is none."""
    found = PRESETS.get(name)
    if found is None:
        raise ConfigError(f"unknown machine {name!r}; known: {', '.join(PRESETS)}")
    return found


_OTHER_FORMS = frozenset({"PCIE", "NVL", "MIG"})
"""In names of cards with other rates than the SXM modules of the presets, or of a part of one."""


def device_preset(device: str) -> Hardware | None:
    """The preset of a GPU of that name, as CUDA tells it (`NVIDIA H100 80GB HBM3`); None where
    there is none. `cpu` has none either: cores differ, and the preset is one of them."""
    words = set(re.split(r"[\s_-]+", device.upper()))
    if words & _OTHER_FORMS:
        return None
    gpus = (one for one in PRESETS.values() if one is not CPU)
    return next((one for one in gpus if one.name.upper() in words), None)
