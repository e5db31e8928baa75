"""Network devices and GPUs of this machine, and where they sit on PCIe, from files of the kernel.

Linux only; elsewhere nothing is found. `root` is / but in tests.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_PCI = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}|[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_FIELD = re.compile(r"^([^:]+):\s*(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where a device sits."""

    pci: tuple[str, ...] = ()
    """Host bridge, bridges and the device itself; () for a virtual device."""
    numa: int = -1
    """NUMA node; -1 where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A network device: an RDMA device, a network interface, or both in one."""

    rdma: str = ""
    """Name for NCCL, such as `mlx5_0`; empty where it cannot do RDMA or its link is down."""
    interface: str = ""
    """Name for sockets, such as `eth0`; empty where it has none."""
    spot: Spot = Spot()

    def __str__(self) -> str:
        return self.rdma or self.interface


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """An NVIDIA GPU."""

    uuid: str
    """Without `GPU-`."""
    name: str
    spot: Spot = Spot()


def read_nics(root: Path = Path("/")) -> tuple[Nic, ...]:
    """Return RDMA devices with a link, each with its interface, then interfaces of other devices.

    Loopback and other interfaces without hardware are left out, but for veth and bridges, by which
    containers and namespaces reach the network.
    """
    rdma = [_rdma(folder) for folder in _entries(root / "sys/class/infiniband")]
    known = {nic.interface for nic in rdma}
    interfaces = [
        Nic(interface=folder.name, spot=_spot(folder / "device"))
        for folder in _entries(root / "sys/class/net")
        if folder.name != "lo" and folder.name not in known
    ]
    return (*rdma, *interfaces)


def _rdma(folder: Path) -> Nic:
    interfaces = _entries(folder / "device/net")
    active = any("ACTIVE" in _read(port / "state") for port in _entries(folder / "ports"))
    return Nic(
        rdma=folder.name if active else "",
        interface=interfaces[0].name if interfaces else "",
        spot=_spot(folder / "device"),
    )


def read_gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """Return the GPUs that NVIDIA's driver shows here, in the order of their PCI addresses."""
    return tuple(
        _gpu(root, folder.name, dict(_FIELD.findall(_read(folder / "information"))))
        for folder in _entries(root / "proc/driver/nvidia/gpus")
    )


def _gpu(root: Path, address: str, fields: dict[str, str]) -> Gpu:
    return Gpu(
        uuid=fields.get("GPU UUID", "").removeprefix("GPU-"),
        name=fields.get("Model", ""),
        spot=_spot(root / "sys/bus/pci/devices" / address),
    )


def _spot(device: Path) -> Spot:
    """The place of the device that link `device` leads to."""
    try:
        real = device.resolve(strict=True)
    except OSError:
        return Spot()
    numa = _read(real / "numa_node").strip()
    return Spot(
        pci=tuple(part for part in real.parts if _PCI.fullmatch(part)),
        numa=int(numa) if re.fullmatch(r"-?\d+", numa) else -1,
    )


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
