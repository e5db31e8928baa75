"""Devices by the kernel's files, of a tree that looks like a server's."""

from pathlib import Path

import pytest

from disagmoe.actors.sysfs import Gpu, Nic, Spot, read_gpus, read_nics

SWITCH = "pci0000:15/0000:15:01.0/0000:16:00.0"
GPU_PATH = f"{SWITCH}/0000:17:00.0/0000:18:00.0"
NIC_PATH = f"{SWITCH}/0000:17:01.0/0000:19:00.0"
INFORMATION = """\
Model: \t\t NVIDIA H800
IRQ:   \t\t 77
GPU UUID: \t GPU-5f1c0e3a-0000-1111-2222-333344445555
Bus Location: \t 0000:18:00.0
"""


class Server:
    """Files below a root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def device(self, path: str, numa: str = "0\n") -> Path:
        folder = self.root / "sys/devices" / path
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(numa)
        return folder

    def link(self, place: str, target: Path) -> None:
        link = self.root / place
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def rdma(self, name: str, device: Path, interface: str = "", state: str = "4: ACTIVE") -> None:
        (device / f"infiniband/{name}/ports/1").mkdir(parents=True)
        (device / f"infiniband/{name}/ports/1/state").write_text(f"{state}\n")
        (device / f"infiniband/{name}/device").symlink_to(device)
        self.link(f"sys/class/infiniband/{name}", device / f"infiniband/{name}")
        if interface:
            self.interface(interface, device)

    def interface(self, name: str, device: Path) -> None:
        (device / f"net/{name}").mkdir(parents=True)
        (device / f"net/{name}/device").symlink_to(device)
        self.link(f"sys/class/net/{name}", device / f"net/{name}")


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_devices_with_their_place(server: Server) -> None:
    server.rdma("mlx5_0", server.device(NIC_PATH), "ens1")
    server.interface("eth0", server.device("pci0000:00/0000:00:1c.0", numa="-1\n"))
    virtual = server.root / "sys/devices/virtual/net/lo"
    virtual.mkdir(parents=True)
    server.link("sys/class/net/lo", virtual)
    assert read_nics(server.root) == (
        Nic(
            rdma="mlx5_0",
            interface="ens1",
            spot=Spot(pci=tuple(NIC_PATH.split("/")), numa=0),
        ),
        Nic(interface="eth0", spot=Spot(pci=("pci0000:00", "0000:00:1c.0"), numa=-1)),
    )
    assert [str(nic) for nic in read_nics(server.root)] == ["mlx5_0", "eth0"]


def test_an_rdma_device_without_a_link_is_a_network_interface_at_most(server: Server) -> None:
    server.rdma("mlx5_1", server.device(NIC_PATH), "ens2", state="1: DOWN")
    (nic,) = read_nics(server.root)
    assert (nic.rdma, nic.interface) == ("", "ens2")


def test_gpus(server: Server) -> None:
    server.link("sys/bus/pci/devices/0000:18:00.0", server.device(GPU_PATH, numa="1\n"))
    folder = server.root / "proc/driver/nvidia/gpus/0000:18:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text(INFORMATION)
    assert read_gpus(server.root) == (
        Gpu(
            uuid="5f1c0e3a-0000-1111-2222-333344445555",
            name="NVIDIA H800",
            spot=Spot(pci=tuple(GPU_PATH.split("/")), numa=1),
        ),
    )


def test_a_machine_without_such_files_has_nothing(tmp_path: Path) -> None:
    assert read_nics(tmp_path) == ()
    assert read_gpus(tmp_path) == ()
