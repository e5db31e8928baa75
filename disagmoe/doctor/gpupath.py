"""What the GPU path needs: devices, cupy's NCCL beside torch's, and RDMA next to the GPUs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from disagmoe.actors.nics import NCCL_DEVICES, rdma_list, share_nics
from disagmoe.actors.sysfs import Gpu, Nic
from disagmoe.doctor.finding import Finding
from disagmoe.errors import TransportError
from disagmoe.transport.nccl_library import Nccl, load_nccl
from disagmoe.transport.streams import no_device
from disagmoe.units import format_bytes

_OLDEST_CAPABILITY = (8, 0)
"""Ampere: the first with bf16 matrix products."""
_PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")


def device_findings() -> Iterator[Finding]:
    """Say what each CUDA device is; a problem where torch sees none."""
    if not torch.cuda.is_available():
        yield Finding(
            subject="CUDA",
            level="problem",
            found=no_device(torch.device("cuda")),
            advice="look at `nvidia-smi`; `make install-gpu` installs what fits its driver",
        )
        return
    for index in range(torch.cuda.device_count()):
        one = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        yield device_finding(index, one.name, (one.major, one.minor), free, total)


def device_finding(
    index: int, name: str, capability: tuple[int, int], free: int, total: int
) -> Finding:
    """Judge one device by its compute capability and its free memory."""
    found = (
        f"{name}, compute capability {capability[0]}.{capability[1]}, {format_bytes(free)} of "
        f"{format_bytes(total)} free"
    )
    if capability < _OLDEST_CAPABILITY:
        return Finding(
            subject=f"cuda:{index}",
            level="problem",
            found=found,
            advice="bf16 products need compute capability 8.0; use train.precision = fp32, or "
            "another GPU",
        )
    if free < total // 2:
        return Finding(
            subject=f"cuda:{index}",
            level="note",
            found=found,
            advice="`nvidia-smi` says which process holds the rest",
        )
    return Finding(subject=f"cuda:{index}", level="ok", found=found)


def library_finding(load: Callable[[], Nccl] = load_nccl) -> Finding:
    """Load NCCL through cupy as a worker does, and make an id with it."""
    try:
        nccl = load()
        nccl.unique_id()
    except TransportError as error:
        found, _, advice = str(error).partition("; ")
        return Finding(subject="cupy", level="problem", found=found, advice=advice)
    version = ".".join(map(str, nccl.version))
    return Finding(subject="cupy", level="ok", found=f"NCCL {version} answers through it")


def network_finding(
    gpus: Sequence[Gpu], nics: Sequence[Nic], environ: Mapping[str, str], root: Path = Path("/")
) -> Finding:
    """Say by which RDMA devices each GPU of this machine would send, and whether a network card can
    read a GPU's memory by itself."""
    if told := environ.get(NCCL_DEVICES):
        return Finding(subject="RDMA", level="ok", found=f"{NCCL_DEVICES} = {told} for all workers")
    by_gpu = {f"GPU {at}": gpu for at, gpu in enumerate(gpus)}
    shares = {name: rdma_list(share) for name, share in share_nics(by_gpu, (), nics).items()}
    found = ", ".join(f"{name} by {devices[1:]}" for name, devices in shares.items() if devices)
    if not found:
        return Finding(
            subject="RDMA",
            level="note",
            found="no device with a link near a GPU; between nodes NCCL uses sockets",
            advice="a cluster on InfiniBand or RoCE shows its devices in /sys/class/infiniband; in "
            "a container, pass /dev/infiniband and the capability IPC_LOCK",
        )
    if not any((root / "sys/module" / module).is_dir() for module in _PEER_MEMORY):
        return Finding(
            subject="RDMA",
            level="note",
            found=f"{found}; the kernel module nvidia_peermem is not loaded",
            advice="`modprobe nvidia_peermem` lets cards read GPU memory, unless driver and kernel "
            "use DMA-BUF for that (NCCL_DEBUG=INFO says GDRDMA)",
        )
    return Finding(subject="RDMA", level="ok", found=found)


def locked_memory_finding(limit: int, unlimited: int) -> Finding:
    """Compare the limit on locked memory, which buffers for RDMA are."""
    if limit == unlimited:
        return Finding(subject="locked memory", level="ok", found="no limit")
    return Finding(
        subject="locked memory",
        level="note",
        found=f"at most {format_bytes(limit)} per process",
        advice="`ulimit -l unlimited` before `ray start` (docker run --ulimit memlock=-1); RDMA "
        "registers its buffers",
    )
