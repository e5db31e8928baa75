"""Network devices of each worker by affinity, by what idle GPUs lend, and by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.actors.nics import (
    closeness,
    named_nics,
    rdma_list,
    share_nics,
    socket_interface,
)
from disagmoe.actors.sysfs import Gpu, Nic, Spot
from disagmoe.errors import PlacementError


def rail(i: int) -> tuple[Gpu, Nic]:
    """GPU i and its network device behind a switch of their own; four switches per NUMA node."""
    switch = (f"pci0000:{i:02x}", f"0000:{i:02x}:01.0")
    numa = i // 4
    return (
        Gpu(uuid=f"gpu{i}", name="H800", spot=Spot(pci=(*switch, f"0000:{i:02x}:02.0"), numa=numa)),
        Nic(rdma=f"mlx5_{i}", spot=Spot(pci=(*switch, f"0000:{i:02x}:03.0"), numa=numa)),
    )


GPUS, NICS = zip(*(rail(i) for i in range(8)), strict=True)
STORAGE = Nic(rdma="mlx5_8", spot=Spot(pci=("pci0000:f0", "0000:f0:01.0"), numa=1))
MANAGEMENT = Nic(interface="eth0", spot=Spot(pci=("pci0000:f1",)))


def names(shares: dict[str, tuple[Nic, ...]]) -> dict[str, str]:
    return {worker: " ".join(map(str, nics)) for worker, nics in shares.items()}


def test_a_full_node_has_one_device_per_worker_and_those_of_storage_are_nobodys() -> None:
    used = {f"A0.{i}": GPUS[7 - i] for i in range(8)}  # Ray gives GPUs in any order
    shares = share_nics(used, [], [*NICS, STORAGE, MANAGEMENT])
    assert names(shares) == {f"A0.{i}": f"mlx5_{7 - i}" for i in range(8)}


def test_idle_gpus_lend_their_devices_to_the_workers_of_the_same_numa_node() -> None:
    used = {"A0.0": GPUS[0], "A0.1": GPUS[1], "A0.2": GPUS[4], "A0.3": GPUS[5]}
    idle = [GPUS[i] for i in (2, 3, 6, 7)]
    assert names(share_nics(used, idle, [*NICS, STORAGE])) == {
        "A0.0": "mlx5_0 mlx5_2",
        "A0.1": "mlx5_1 mlx5_3",
        "A0.2": "mlx5_4 mlx5_6",
        "A0.3": "mlx5_5 mlx5_7",
    }


def test_gpus_of_others_lend_nothing() -> None:
    used = {"A0.0": GPUS[0], "A0.1": GPUS[4]}
    assert names(share_nics(used, [], NICS)) == {"A0.0": "mlx5_0", "A0.1": "mlx5_4"}


def test_two_gpus_on_a_switch_share_its_device() -> None:
    second = Gpu(uuid="x", name="H800", spot=Spot(pci=(*GPUS[0].spot.pci[:2], "0000:00:04.0")))
    assert names(share_nics({"A0.0": GPUS[0], "A0.1": second}, [], NICS[:1])) == {
        "A0.0": "mlx5_0",
        "A0.1": "mlx5_0",
    }


def test_switches_may_be_nested_differently() -> None:
    deep = ("pci0000:0a", "0000:0a:01.0", "0000:0b:00.0")
    gpu = Gpu(uuid="deep", name="H800", spot=Spot(pci=(*deep, "0000:0c:00.0")))
    nic = Nic(rdma="deep", spot=Spot(pci=(*deep, "0000:0d:00.0")))
    used = {"A0.0": gpu, "A0.1": GPUS[0]}
    assert names(share_nics(used, [], [nic, NICS[0]])) == {"A0.0": "deep", "A0.1": "mlx5_0"}


def test_where_no_switch_is_shared_the_numa_node_decides() -> None:
    gpus = {f"A0.{n}": Gpu(uuid=f"{n}", name="H800", spot=Spot(numa=n)) for n in (0, 1)}
    nics = [Nic(rdma=f"mlx5_{n}", spot=Spot(numa=n)) for n in (1, 0)]
    assert names(share_nics(gpus, [], nics)) == {"A0.0": "mlx5_0", "A0.1": "mlx5_1"}


def test_without_rdma_or_gpus_libraries_choose() -> None:
    assert share_nics({"A0.0": GPUS[0]}, [], [MANAGEMENT]) == {"A0.0": ()}
    assert share_nics({}, GPUS, NICS) == {}
    lost = {"A0.0": Gpu(uuid="x", name="H800")}
    assert share_nics(lost, [], [Nic(rdma="mlx5_0")]) == {"A0.0": ()}


@given(st.sets(st.integers(0, 7), min_size=1), st.permutations(range(8)))
def test_each_device_next_to_a_gpu_of_ours_is_used_once_and_shares_differ_little(
    places: set[int], order: list[int]
) -> None:
    used = {f"A0.{rank}": GPUS[i] for rank, i in enumerate(i for i in order if i in places)}
    idle = [GPUS[i] for i in range(8) if i not in places]
    shares = share_nics(used, idle, [*NICS, STORAGE])
    assert sorted(str(nic) for share in shares.values() for nic in share) == [
        f"mlx5_{i}" for i in range(8)
    ]
    for worker, gpu in used.items():
        assert str(shares[worker][0]) == gpu.uuid.replace("gpu", "mlx5_")
        near = [w for w, other in used.items() if other.spot.numa == gpu.spot.numa]
        sizes = [len(shares[w]) for w in near]
        assert max(sizes) - min(sizes) <= 1


def test_closeness() -> None:
    gpu, nic = rail(0)
    assert [
        closeness(gpu.spot, other)
        for other in (nic.spot, Spot(pci=("pci0000:00",)), Spot(numa=0), Spot(numa=1), Spot())
    ] == [3, 2, 1, 0, 0]
    assert closeness(Spot(), Spot()) == 0


def test_devices_are_found_by_either_name() -> None:
    both = Nic(rdma="mlx5_0", interface="ens1")
    assert named_nics(["ens1", "eth0"], [both, MANAGEMENT]) == (both, MANAGEMENT)
    assert named_nics(["mlx5_0"], [both]) == (both,)
    with pytest.raises(PlacementError) as caught:
        named_nics(["mlx5_7"], [both, MANAGEMENT])
    assert str(caught.value) == (
        "has no network device mlx5_7 with a link; it has mlx5_0, ens1, eth0"
    )
    with pytest.raises(PlacementError, match=r"it has none$"):
        named_nics(["mlx5_7"], [])


def test_what_libraries_are_told() -> None:
    both = Nic(rdma="mlx5_0", interface="ens1")
    assert rdma_list([both, NICS[1], MANAGEMENT]) == "=mlx5_0,mlx5_1"
    assert rdma_list([MANAGEMENT]) == ""
    assert socket_interface([NICS[1], both]) == "ens1"
    assert socket_interface([NICS[1]]) == ""
