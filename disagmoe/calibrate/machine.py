"""A whole machine: kernels, ops, memory and links, as the cost model wants them."""

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch

from disagmoe.calibrate.devices import measure_devices
from disagmoe.calibrate.kernels import (
    CPU_SIZES,
    CUDA_SIZES,
    Kernels,
    Sizes,
    copied_bytes_per_s,
    measure_kernels,
    peak_flops,
)
from disagmoe.calibrate.links import LinkRate, MessageWorks, measure_link, measure_messages
from disagmoe.calibrate.ops import fit_flash, fit_ops, sample_ops
from disagmoe.calibrate.pair import End
from disagmoe.calibrate.process import device_bytes, process_bytes
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from disagmoe.costs.calibration import NO_WORK, Calibration
from disagmoe.costs.hardware import Hardware, Precision
from disagmoe.costs.kernels import Machine
from disagmoe.costs.measured import MeasuredMachine
from disagmoe.model.precision import TYPES
from disagmoe.units import GB, format_bytes

Say = Callable[[str], None]

_LOOPBACK = "127.0.0.1"
_RATED: tuple[Precision, ...] = ("bf16", "fp32")
"""What the cost model knows rates of."""
_MEASURED = "measured by `disagmoe calibrate` with torch {} on {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to measure."""

    device: torch.device
    precisions: Sequence[Precision]
    configs: Sequence[RunConfig]
    """Runs whose ops are measured."""
    sequences: Sequence[int]
    """Sequences of a micro-batch, each of which the ops of every run are measured with."""
    nic_bytes_per_s: float = 0.0
    """Of a worker's network card; 0 for as fast as the workers at `ends` reach each other, since
    one machine alone cannot know it."""
    ends: tuple[End, End] | None = None
    """Where two workers would be; on this machine, over loopback, if not given."""


def calibrate(request: Request, say: Say) -> MeasuredMachine:
    """Measure this machine with one compute thread: a worker is one core, or one GPU.

    Raises:
        WorkerError, TransportError: a run or a link of the measurement fails.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _calibrate(request, say)
    finally:
        torch.set_num_threads(before)


def _calibrate(request: Request, say: Say) -> MeasuredMachine:
    device = request.device
    sizes = CUDA_SIZES if device.type == "cuda" else CPU_SIZES
    memory = copied_bytes_per_s(sizes, device)
    say(f"copies move {memory / GB:.1f} GB/s")
    kernels = {
        name: measure_kernels(sizes, TYPES[name], device, memory) for name in request.precisions
    }
    ends = request.ends or _ends_within()
    link, what = _link_within(device, ends)
    say(f"{what}: {link.bytes_per_s / GB:.2f} GB/s, {link.latency_s * 1e6:.0f} us")
    works = MessageWorks(send=NO_WORK, receive=NO_WORK)
    if device.type == "cpu":
        works = measure_messages(*ends, link)
        say(works.text)
    hardware = _hardware(request, sizes, kernels, memory, link, what)
    system = device_bytes() if device.type == "cuda" else process_bytes()
    say(f"a worker takes {format_bytes(system)} without a model")
    found: dict[Precision, Calibration] = {}
    for precision, seen in kernels.items():
        say(f"{precision}: {seen.peak_flops / GB:.0f} GFLOP/s in products")
        alone = _calibration(hardware.name, seen, link, works, float(system))
        if not request.nic_bytes_per_s:  # the link that was measured is the network card
            alone = replace(alone, burst_bytes=link.burst_bytes)
        runs = [override(one, [f"train.precision={precision}"]) for one in request.configs]
        samples = [sample_ops(run, size, device) for run in runs for size in request.sequences]
        machine = Machine(hardware=hardware, calibration=alone, precision=precision)
        machine = fit_flash(samples, machine)
        found[precision] = replace(machine.calibration, ops=fit_ops(samples, machine))
        say(f"{precision}: ops of {len(samples)} runs measured")
    return MeasuredMachine(hardware=hardware, calibrations=found)


def _link_within(device: torch.device, ends: tuple[End, End]) -> tuple[LinkRate, str]:
    """What workers of one machine reach each other by, and what that is: copies between two GPUs
    where there are two, else gloo between two processes."""
    if device.type == "cuda" and torch.cuda.device_count() > 1:
        first, second = torch.device("cuda", 0), torch.device("cuda", 1)
        return measure_devices(first, second), "copies from one GPU to the next"
    return measure_link(*ends), "gloo between two workers of this machine"


def _ends_within() -> tuple[End, End]:
    """Two workers of this machine, each on a core of its own where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    return End(address=_LOOPBACK, core=cores[0]), End(address=_LOOPBACK, core=cores[-1])


def _calibration(
    name: str, kernels: Kernels, link: LinkRate, works: MessageWorks, system_bytes: float
) -> Calibration:
    """Rates of links were measured, so that the shares of them are 1."""
    return Calibration(
        name=f"measured-{name}",
        projection=kernels.dense,
        dense=kernels.dense,
        grouped=kernels.grouped,
        router_in_fp32=True,
        flash=kernels.flash,
        flash_backward=kernels.flash_backward,
        memory_share=kernels.memory_share,
        kernel_s=kernels.kernel_s,
        nic_share=1.0,
        nvlink_share=1.0,
        latency_s=link.latency_s,
        overlap_slowdown=1.0,
        system_bytes=system_bytes,
        send_work=works.send,
        receive_work=works.receive,
    )


def _hardware(
    request: Request,
    sizes: Sizes,
    kernels: dict[Precision, Kernels],
    memory_bytes_per_s: float,
    link: LinkRate,
    link_source: str,
) -> Hardware:
    device = request.device
    cuda = device.type == "cuda"
    rates = {name: one.peak_flops for name, one in kernels.items()}
    for other in _RATED:
        if other not in rates:
            rates[other] = peak_flops(sizes, TYPES[other], device)
    nic = request.nic_bytes_per_s
    source = _MEASURED.format(torch.__version__, _processor(device))
    sources = dict.fromkeys((field.name for field in fields(Hardware)), source)
    del sources["name"], sources["sources"]
    sources["nvlink_bytes_per_s"] = f"{source}: {link_source}"
    sources["nic_bytes_per_s"] = "as given" if nic else f"not known; {link_source}"
    return Hardware(
        name=_processor(device) if cuda else "cpu",
        bf16_flops=rates["bf16"],
        fp32_flops=rates["fp32"],
        memory_bytes=torch.cuda.mem_get_info(device)[1] if cuda else _core_bytes(),
        memory_bytes_per_s=memory_bytes_per_s,
        multiprocessors=_multiprocessors(device) if cuda else 1,
        nvlink_bytes_per_s=link.bytes_per_s,
        nic_bytes_per_s=nic or link.bytes_per_s,
        sources=sources,
    )


def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _core_bytes() -> int:
    """A core's share of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (os.cpu_count() or 1)


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"one core of {platform.processor() or platform.machine()}"
