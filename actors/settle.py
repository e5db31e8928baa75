"""From what workers find on their nodes to what each is told, or to why the run cannot go on."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from disagmoe.actors.events import RunPlaced, Seat
from disagmoe.actors.messages import Located, RunPlan, WorkerAssignment
from disagmoe.actors.nics import (
    GLOO_INTERFACE,
    NCCL_DEVICES,
    NCCL_INTERFACE,
    named_nics,
    rdma_list,
    share_nics,
    socket_interface,
)
from disagmoe.actors.sysfs import Gpu, Nic
from disagmoe.config.cluster import ClusterConfig
from disagmoe.errors import PlacementError
from disagmoe.schedule.layout import Side, Worker

_SAME_EVERYWHERE = ("disagmoe", "python", "torch")
_EXPECTED_GPUS = 1  # a worker has one, or a share of one


@dataclass(frozen=True, slots=True)
class Settled:
    """All workers are where they should be."""

    seats: tuple[Seat, ...]
    environment: Mapping[str, Mapping[str, str]]
    """What NCCL and gloo are told, by worker."""


def place(
    plan: RunPlan, told: Sequence[WorkerAssignment], located: Mapping[str, Located]
) -> tuple[RunPlaced, list[WorkerAssignment]]:
    """Check where the workers of `plan` are; return that, and `told` with what follows from it.

    Raises PlacementError as `settle` does.
    """
    try:
        settled = settle(plan, located, plan.markers.unseen(list(located)))
    finally:
        plan.markers.end()
    return RunPlaced(seats=settled.seats), [
        replace(item, environment=settled.environment[item.worker]) for item in told
    ]


def settle(plan: RunPlan, located: Mapping[str, Located], unseen: Sequence[str]) -> Settled:
    """Check where the workers of `plan` are, and divide each node's network devices among them.

    `unseen` are those whose markers the driver has not found.

    Raises:
        PlacementError: with everything that is wrong, by worker and node.
    """
    found = [
        f"{item.worker} on {item.host} (node {item.node[:8]}) {problem}"
        for item in located.values()
        for problem in _problems(plan, item, located, unseen)
    ]
    shares: dict[str, tuple[Nic, ...]] = {}
    if plan.config.cluster.mode == "cluster":
        shares, unnamed = _shares(plan, located)
        found += unnamed
    if found:
        raise PlacementError("\n".join(found))
    environment = {
        name: _environment(plan, located[name], shares.get(name, ())) for name in located
    }
    return Settled(
        seats=tuple(
            Seat(
                worker=item.worker,
                node=item.node,
                host=item.host,
                pid=item.pid,
                gpu=item.gpu_ids[0] if item.gpu_ids else None,
                device=item.visible_gpus[0].name if item.visible_gpus else "cpu",
                nics=tuple(str(nic) for nic in shares.get(item.worker, ())),
                environment=environment[item.worker],
            )
            for item in located.values()
        ),
        environment=environment,
    )


def _problems(
    plan: RunPlan, item: Located, located: Mapping[str, Located], unseen: Sequence[str]
) -> Iterator[str]:
    planned = plan.places[item.worker].node
    if item.node != planned:
        yield f"was meant for node {planned[:8]}"
    if item.files:
        yield item.files
    elif item.worker in unseen:
        yield (
            f"writes to another {' or '.join(plan.markers.places)} than the driver; name folders "
            "that all nodes share"
        )
    yield from _version_problems(item, next(iter(located.values())))
    if plan.config.cluster.device == "cuda":
        yield from _gpu_problems(plan, item, located)


def _version_problems(item: Located, first: Located) -> Iterator[str]:
    for name in _SAME_EVERYWHERE:
        ours, theirs = (_public(located.versions[name]) for located in (item, first))
        if ours != theirs:
            yield (
                f"has {name} {ours}, but {first.worker} on {first.host} has {theirs}; install the "
                "same on all nodes"
            )


def _public(version: str) -> str:
    return version.partition("+")[0]  # CPU and CUDA builds of torch differ behind the plus


def _gpu_problems(plan: RunPlan, item: Located, located: Mapping[str, Located]) -> Iterator[str]:
    gpus = item.visible_gpus
    if len(gpus) != _EXPECTED_GPUS:
        yield (
            f"sees {len(gpus)} GPUs, expected {_EXPECTED_GPUS}, though Ray has given it "
            f"{list(item.gpu_ids)}; let Ray alone set CUDA_VISIBLE_DEVICES, and give it no more "
            "GPUs than the node has"
        )
        return
    wanted = accelerator_of(item.worker, plan.config.cluster)
    if wanted and not is_accelerator(gpus[0].name, wanted):
        yield f"sees a {gpus[0].name}, but accelerator = {wanted} was asked for"
    others = [
        other.worker
        for other in located.values()
        if other.visible_gpus == gpus and other.worker != item.worker and other.node == item.node
    ]
    if others and plan.gpus_per_worker == 1:
        yield f"has the same GPU as {' '.join(others)}"


def accelerator_of(worker: str, cluster: ClusterConfig) -> str:
    """The kind of GPU that `cluster` asks for `worker`; empty for any."""
    expert = Worker.parse(worker).group.side is Side.EXPERT
    return (cluster.expert if expert else cluster.attention).accelerator


def is_accelerator(device: str, kind: str) -> bool:
    """Whether the device of that name is of `kind`, as Ray calls it: `NVIDIA A100-SXM4-40GB` is an
    `A100` and an `A100-40G`, but no `A10`."""
    return _words(kind) <= _words(device)


def _words(name: str) -> set[str]:
    words = re.split(r"[\s_-]+", name.upper())
    return {re.sub(r"^(\d+)GB$", r"\1G", word) for word in words}


def _shares(
    plan: RunPlan, located: Mapping[str, Located]
) -> tuple[dict[str, tuple[Nic, ...]], list[str]]:
    """Network devices by worker, and what is wrong with those that the config names."""
    shares: dict[str, tuple[Nic, ...]] = {}
    wrong = []
    for node in dict.fromkeys(item.node for item in located.values()):
        here = {name: item for name, item in located.items() if item.node == node}
        shares |= _by_affinity(plan, here)
    for worker, names in plan.config.cluster.nic_map.items():
        item = located[worker]
        try:
            shares[worker] = named_nics(names, item.nics)
        except PlacementError as error:
            wrong.append(f"{worker} on {item.host} (node {item.node[:8]}) {error}")
    return shares, wrong


def _by_affinity(plan: RunPlan, here: Mapping[str, Located]) -> dict[str, tuple[Nic, ...]]:
    """Divide the devices of one node, unless somebody has told NCCL there what to use."""
    first = next(iter(here.values()))
    if NCCL_DEVICES in first.environment:
        return {}
    used = {name: item.visible_gpus[0] for name, item in here.items() if item.visible_gpus}
    idle: list[Gpu] = []
    if plan.places[first.worker].all_gpus:
        taken = {gpu.uuid for gpu in used.values()}
        idle = [gpu for gpu in first.node_gpus if gpu.uuid not in taken]
    return share_nics(used, idle, first.nics)


def _environment(plan: RunPlan, item: Located, nics: Sequence[Nic]) -> dict[str, str]:
    """What NCCL and gloo are told: what the node says, then what its devices ask for."""
    if plan.config.cluster.mode != "cluster":
        return {}
    told = dict(item.environment)
    if devices := rdma_list(nics):
        told[NCCL_DEVICES] = devices
    if item.worker in plan.config.cluster.nic_map:
        if interface := socket_interface(nics):
            told[GLOO_INTERFACE] = interface
        if not devices:
            told[NCCL_INTERFACE] = "=" + ",".join(nic.interface for nic in nics)
    return told
