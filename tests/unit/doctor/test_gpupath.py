"""What the GPU path needs, and what is said where it is missing."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from disagmoe.actors.sysfs import Gpu, Nic, Spot
from disagmoe.doctor.finding import Finding
from disagmoe.doctor.gpupath import (
    device_finding,
    device_findings,
    library_finding,
    locked_memory_finding,
    network_finding,
)
from disagmoe.errors import TransportError
from disagmoe.transport.nccl_library import Nccl
from disagmoe.units import GIB

GPUS = [
    Gpu(uuid=str(at), name="NVIDIA H800", spot=Spot(pci=(f"pci000{at}:00", f"0000:0{at}:00.0")))
    for at in range(2)
]
NICS = [
    Nic(rdma=f"mlx5_{at}", spot=Spot(pci=(f"pci000{at}:00", f"0000:0{at}:01.0"))) for at in (0, 1)
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_device_is_a_problem() -> None:
    (finding,) = device_findings()
    assert (finding.subject, finding.level) == ("CUDA", "problem")
    assert finding.found.startswith("NCCL moves tensors between CUDA devices, and torch")


def test_every_device_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    one = SimpleNamespace(name="NVIDIA H800", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: one)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (78 * GIB, 79 * GIB))
    assert list(device_findings()) == [
        device_finding(index, "NVIDIA H800", (9, 0), 78 * GIB, 79 * GIB) for index in (0, 1)
    ]


@pytest.mark.gpu
def test_devices_are_described() -> None:
    findings = list(device_findings())
    assert len(findings) == torch.cuda.device_count()
    assert "compute capability" in findings[0].found


@pytest.mark.parametrize(
    ("capability", "free", "level", "advice"),
    [
        ((9, 0), 78 * GIB, "ok", ""),
        ((9, 0), 10 * GIB, "note", "`nvidia-smi` says which process holds the rest"),
        ((7, 0), 78 * GIB, "problem", "bf16 products need compute capability 8.0; use "),
    ],
)
def test_a_device(capability: tuple[int, int], free: int, level: str, advice: str) -> None:
    finding = device_finding(3, "NVIDIA H800", capability, free, 79 * GIB)
    assert (finding.subject, finding.level) == ("cuda:3", level)
    assert finding.advice.startswith(advice)
    assert finding.found == (
        f"NVIDIA H800, compute capability {capability[0]}.{capability[1]}, {free / GIB:.1f} GiB of "
        "79.0 GiB free"
    )


class Library:
    class NcclError(RuntimeError):
        status = 3

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails

    def get_version(self) -> int:
        return 22705

    def get_unique_id(self) -> bytes:
        if self._fails:
            raise self.NcclError
        return bytes(128)


def test_a_library_that_answers() -> None:
    found = "NCCL 2.27.5 answers through it"
    assert library_finding(lambda: Nccl(Library())) == Finding(
        subject="cupy", level="ok", found=found
    )


def test_a_library_that_fails() -> None:
    finding = library_finding(lambda: Nccl(Library(fails=True)))
    assert finding.level == "problem"
    assert finding.found == "NCCL cannot make a unique id: status 3, internal error"


def test_a_missing_library_says_what_to_do() -> None:
    def load() -> Nccl:
        raise TransportError("transport nccl needs cupy with NCCL: none; install the extra 'gpu'")

    assert library_finding(load) == Finding(
        subject="cupy",
        level="problem",
        found="transport nccl needs cupy with NCCL: none",
        advice="install the extra 'gpu'",
    )


def test_each_gpu_has_the_cards_next_to_it(tmp_path: Path) -> None:
    finding = network_finding(GPUS, NICS, {}, tmp_path)
    assert finding.level == "note"
    assert finding.found == (
        "GPU 0 by mlx5_0, GPU 1 by mlx5_1; the kernel module nvidia_peermem is not loaded"
    )
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    assert network_finding(GPUS, NICS, {}, tmp_path) == Finding(
        subject="RDMA", level="ok", found="GPU 0 by mlx5_0, GPU 1 by mlx5_1"
    )


def test_what_the_environment_says_counts() -> None:
    finding = network_finding(GPUS, NICS, {"NCCL_IB_HCA": "mlx5_7"})
    assert finding.found == "NCCL_IB_HCA = mlx5_7 for all workers"


def test_sockets_are_a_note() -> None:
    finding = network_finding(GPUS, [Nic(interface="eth0")], {})
    assert finding.level == "note"
    assert finding.found.endswith("between nodes NCCL uses sockets")


def test_locked_memory() -> None:
    assert locked_memory_finding(-1, -1).level == "ok"
    finding = locked_memory_finding(64 * 1024, -1)
    assert (finding.level, finding.found) == ("note", "at most 64.0 KiB per process")
