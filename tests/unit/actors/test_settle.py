"""From what workers find on their nodes to what they are told, or to what is wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disagmoe.actors.assignments import assignments
from disagmoe.actors.events import Seat
from disagmoe.actors.markers import Markers
from disagmoe.actors.messages import Located, RunPlan
from disagmoe.actors.settle import is_accelerator, place, settle
from disagmoe.actors.sysfs import Nic, Spot
from disagmoe.config.load import override
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.errors import PlacementError
from disagmoe.schedule.from_config import compile_for
from tests.unit.actors.plans import gpu, located_by, plan_of

ROOT = Path(__file__).resolve().parents[3]
ON_CLUSTER = ("cluster.mode=cluster", "parallel.attention_workers=2")
ON_GPUS = (*ON_CLUSTER, "cluster.device=cuda")


def plan(*sets: str, **changes: Any) -> RunPlan:
    config = override(RunConfig.load(ROOT / "configs/tiny.toml"), sets)
    return plan_of(resolve(config, cuda=True), **changes)


def changed(located: dict[str, Located], worker: str, **changes: Any) -> dict[str, Located]:
    return located | {worker: replace(located[worker], **changes)}


def on_one_node(located: dict[str, Located], **changes: Any) -> dict[str, Located]:
    """All attention workers on the node of A0.0."""
    first = located["A0.0"]
    return {
        name: replace(item, node=first.node, host=first.host, **changes)
        if name.startswith("A")
        else item
        for name, item in located.items()
    }


def on_gpus(run: RunPlan) -> dict[str, Located]:
    return {
        name: replace(item, gpu_ids=(i,), visible_gpus=(gpu(f"gpu{i}"),))
        for i, (name, item) in enumerate(located_by(run).items())
    }


def complaint(run: RunPlan, located: dict[str, Located], unseen: tuple[str, ...] = ()) -> str:
    with pytest.raises(PlacementError) as caught:
        settle(run, located, unseen)
    return str(caught.value)


def test_workers_that_are_where_they_should_be() -> None:
    run = plan(*ON_CLUSTER, "cluster.device=cpu")
    settled = settle(run, located_by(run), [])
    assert settled.environment == {"A0.0": {}, "A0.1": {}, "F0.0": {}}
    assert settled.seats[2] == Seat(
        worker="F0.0",
        node="2" * 12,
        host="10.0.0.3",
        pid=102,
        gpu=None,
        device="cpu",
        nics=(),
        environment={},
    )


def test_gpus_are_told_by_number_and_name() -> None:
    run = plan(*ON_GPUS)
    seats = settle(run, on_gpus(run), []).seats
    assert [(seat.gpu, seat.device) for seat in seats] == [(i, "NVIDIA H800") for i in range(3)]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"node": "9" * 12}, "F0.0 on 10.0.0.3 (node 99999999) was meant for node 22222222"),
        (
            {"files": "cannot write to /run: Permission denied"},
            "F0.0 on 10.0.0.3 (node 22222222) cannot write to /run: Permission denied",
        ),
        (
            {"versions": {"disagmoe": "1", "python": "3.12.1", "torch": "2.9.1+cu128"}},
            "F0.0 on 10.0.0.3 (node 22222222) has torch 2.9.1, but A0.0 on 10.0.0.1 has 2.13.0; "
            "install the same on all nodes",
        ),
        (
            {"visible_gpus": ()},
            "F0.0 on 10.0.0.3 (node 22222222) sees 0 GPUs, expected 1, though Ray has given it "
            "[2]; let Ray alone set CUDA_VISIBLE_DEVICES, and give it no more GPUs than the node "
            "has",
        ),
        (
            {"visible_gpus": (gpu("x", name="NVIDIA A100-SXM4-40GB"),)},
            "F0.0 on 10.0.0.3 (node 22222222) sees a NVIDIA A100-SXM4-40GB, but accelerator = H800 "
            "was asked for",
        ),
    ],
    ids=["node", "files", "versions", "no gpu", "accelerator"],
)
def test_what_is_wrong_names_worker_and_node(changes: dict[str, Any], problem: str) -> None:
    run = plan(*ON_GPUS, "cluster.expert.accelerator=H800")
    assert complaint(run, changed(on_gpus(run), "F0.0", **changes)) == problem


def test_builds_of_torch_may_differ() -> None:
    run = plan(*ON_GPUS)
    versions = {"disagmoe": "1", "python": "3.12.1", "torch": "2.13.0+cu130"}
    settle(run, changed(on_gpus(run), "F0.0", versions=versions), [])


def test_a_marker_that_the_driver_does_not_see() -> None:
    run = plan(*ON_CLUSTER, "cluster.device=cpu")
    assert complaint(run, located_by(run), unseen=("A0.1",)) == (
        "A0.1 on 10.0.0.2 (node 11111111) writes to another /run than the driver; name "
        "folders that all nodes share"
    )


def test_two_workers_on_one_gpu() -> None:
    run = plan(*ON_GPUS, gpus_per_worker=1.0)
    first = run.places["A0.0"]
    run = replace(run, places=run.places | {"A0.1": first})
    both = on_one_node(on_gpus(run), visible_gpus=(gpu("same"),))
    assert complaint(run, both).splitlines() == [
        "A0.0 on 10.0.0.1 (node 00000000) has the same GPU as A0.1",
        "A0.1 on 10.0.0.1 (node 00000000) has the same GPU as A0.0",
    ]
    settle(replace(run, gpus_per_worker=0.5), both, [])


def rails() -> dict[str, Any]:
    """A node with four GPUs and a network device beside each."""
    paths = [(f"pci0000:0{i}", f"0000:0{i}:01.0") for i in range(4)]
    return {
        "node_gpus": tuple(gpu(f"gpu{i}", *path) for i, path in enumerate(paths)),
        "nics": (
            *(
                Nic(rdma=f"mlx5_{i}", interface=f"ens{i}", spot=Spot(pci=path))
                for i, path in enumerate(paths)
            ),
            Nic(interface="eth0"),
        ),
    }


def test_devices_by_affinity_and_those_of_idle_gpus() -> None:
    run = plan(*ON_GPUS)
    first = replace(run.places["A0.0"], all_gpus=True)
    run = replace(run, places=run.places | {"A0.0": first, "A0.1": first})
    node = rails()
    located = on_one_node(on_gpus(run), **node)
    for i, name in enumerate(("A0.0", "A0.1")):
        located = changed(located, name, visible_gpus=(node["node_gpus"][i],))
    settled = settle(run, located, [])
    assert {seat.worker: seat.nics for seat in settled.seats} == {
        "A0.0": ("mlx5_0", "mlx5_2"),
        "A0.1": ("mlx5_1", "mlx5_3"),
        "F0.0": (),
    }
    assert settled.environment == {
        "A0.0": {"NCCL_IB_HCA": "=mlx5_0,mlx5_2"},
        "A0.1": {"NCCL_IB_HCA": "=mlx5_1,mlx5_3"},
        "F0.0": {},
    }
    shared = replace(first, all_gpus=False)
    run = replace(run, places=run.places | {"A0.0": shared, "A0.1": shared})
    assert settle(run, located, []).seats[0].nics == ("mlx5_0",)


def test_a_node_that_has_been_told_is_left_alone_but_for_named_devices() -> None:
    told = {"NCCL_IB_HCA": "mlx5", "GLOO_SOCKET_IFNAME": "eth0"}
    run = plan(*ON_GPUS, 'cluster.nic_map={"F0.0" = ["eth0"], "A0.1" = ["mlx5_3", "mlx5_2"]}')
    located = {
        name: replace(item, environment=told, **rails()) for name, item in on_gpus(run).items()
    }
    settled = settle(run, located, [])
    assert settled.environment == {
        "A0.0": told,
        "A0.1": {"NCCL_IB_HCA": "=mlx5_3,mlx5_2", "GLOO_SOCKET_IFNAME": "ens3"},
        "F0.0": told | {"NCCL_SOCKET_IFNAME": "=eth0"},
    }
    assert [seat.nics for seat in settled.seats] == [(), ("mlx5_3", "mlx5_2"), ("eth0",)]


def test_a_named_device_that_is_not_there() -> None:
    run = plan(*ON_GPUS, 'cluster.nic_map={"F0.0" = ["mlx5_9"]}')
    located = changed(on_gpus(run), "F0.0", nics=(Nic(interface="eth0"),))
    assert complaint(run, located) == (
        "F0.0 on 10.0.0.3 (node 22222222) has no network device mlx5_9 with a link; it has eth0"
    )


def test_all_problems_are_told_at_once() -> None:
    run = plan(*ON_GPUS)
    located = changed(on_gpus(run), "A0.0", files="is full")
    located = changed(located, "F0.0", visible_gpus=())
    assert [line.split(" ")[0] for line in complaint(run, located).splitlines()] == ["A0.0", "F0.0"]


def test_a_run_on_one_machine_keeps_to_loopback() -> None:
    run = plan("cluster.device=cpu")
    located = {
        name: replace(item, environment={"GLOO_SOCKET_IFNAME": "eth0"}, nics=(Nic(rdma="x"),))
        for name, item in located_by(run).items()
    }
    assert settle(run, located, []).environment == {"A0.0": {}, "F0.0": {}}


@pytest.mark.parametrize(
    ("device", "kind", "same"),
    [
        ("NVIDIA H800", "H800", True),
        ("NVIDIA H100 80GB HBM3", "H100", True),
        ("NVIDIA A100-SXM4-40GB", "A100", True),
        ("NVIDIA A100-SXM4-40GB", "A100-40G", True),
        ("NVIDIA A100-SXM4-80GB", "A100-40G", False),
        ("NVIDIA H200", "H20", False),
        ("NVIDIA H20", "H200", False),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000", True),
    ],
)
def test_a_device_is_of_the_kind_that_its_name_says(device: str, kind: str, same: bool) -> None:
    assert is_accelerator(device, kind) is same


def test_workers_are_told_what_follows_and_markers_go(tmp_path: Path) -> None:
    markers = Markers(str(tmp_path))
    run = plan(*ON_CLUSTER, "cluster.device=cpu", run_dir=str(tmp_path), markers=markers)
    markers.begin()
    for worker in run.places:
        assert markers.meet(worker) == ""
    told = assignments(run, *compile_for(run.config), 99)
    located = {
        name: replace(item, environment={"NCCL_IB_HCA": "mlx5"})
        for name, item in located_by(run).items()
    }
    placed, given = place(run, told, located)
    assert [seat.worker for seat in placed.seats] == ["A0.0", "A0.1", "F0.0"]
    assert given == [replace(item, environment={"NCCL_IB_HCA": "mlx5"}) for item in told]
    assert list(tmp_path.iterdir()) == []
