"""What must hold between settings of the machines; part of RULES."""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from disagmoe.config.cluster import SideConfig
from disagmoe.config.parallel import COLOCATED
from disagmoe.config.tomlwrite import format_value

if TYPE_CHECKING:  # run.py uses these rules
    from disagmoe.config.run import RunConfig

_ADDRESS = re.compile(r"[^\s:/]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")
_DEVICE = re.compile(r"[^\s,=^]+")  # NCCL and gloo split lists at commas; `=` and `^` mean more
_LABEL = re.compile(  # ray.io, "Use labels": letters, digits, - _ . and a prefix before a slash
    r"([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?=[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?",
    re.ASCII,
)
_FEW = 4


def address_is_one(config: "RunConfig") -> Iterator[str]:
    """`cluster.address` is empty, `auto`, `local` or HOST:PORT."""
    address = config.cluster.address
    if address in ("", "auto", "local") or _ADDRESS.fullmatch(address):
        return
    hint = ""
    if "://" in address:
        hint = " (it is the address of the head's GCS, port 6379 if not chosen otherwise)"
    yield (
        f"cluster.address = {format_value(address)}; expected HOST:PORT, "
        f'"auto", "local" or ""{hint}'
    )


def clusters_are_joined(config: "RunConfig") -> Iterator[str]:
    """`cluster.mode` is not `cluster` where `cluster.address` is `local`."""
    if config.cluster.mode == "cluster" and config.cluster.address == "local":
        yield (
            'cluster.mode = "cluster" never starts a Ray, but cluster.address = "local" asks for '
            'one; name a cluster by HOST:PORT, or use mode = "local"'
        )


def nodes_are_for_clusters(config: "RunConfig") -> Iterator[str]:
    """`cluster.attention`, `cluster.expert` and `cluster.nic_map` are given for
    `cluster.mode = "cluster"` only."""
    cluster = config.cluster
    if cluster.mode == "cluster":
        return
    for name, given in (
        ("attention", _given(cluster.attention)),
        ("expert", _given(cluster.expert)),
        ("nic_map", bool(cluster.nic_map)),
    ):
        if given:
            yield (
                f'cluster.{name} is given, but cluster.mode = "local" keeps all workers on one '
                'machine; leave it out, or use mode = "cluster"'
            )


def colocated_nodes_are_attentions(config: "RunConfig") -> Iterator[str]:
    """`cluster.expert` is not given for colocated schedules, whose workers follow
    `cluster.attention`."""
    schedule = config.parallel.schedule
    if schedule in COLOCATED and _given(config.cluster.expert):
        yield (
            f'cluster.expert is given, but parallel.schedule = "{schedule}" has no workers for '
            "experts alone; cluster.attention is for all of them"
        )


def gpus_are_for_cuda(config: "RunConfig") -> Iterator[str]:
    """`accelerator` and `gpus_per_node` of `cluster.attention` and `cluster.expert` are not given
    where `cluster.device` is `cpu`."""
    if config.cluster.device != "cpu":
        return
    for name, side in _sides(config):
        for key, value in (
            ("accelerator", side.accelerator),
            ("gpus_per_node", side.gpus_per_node),
        ):
            if value:
                yield (
                    f'cluster.{name}.{key} = {format_value(value)}, but cluster.device = "cpu"; '
                    'leave it out, or use device "cuda"'
                )


def gpus_hold_workers(config: "RunConfig") -> Iterator[str]:
    """`gpus_per_node` is at least `workers_per_node` where both are given, for `cluster.attention`
    and `cluster.expert`."""
    for name, side in _sides(config):
        if 0 < side.gpus_per_node < side.workers_per_node:
            yield (
                f"cluster.{name}.gpus_per_node = {side.gpus_per_node} is less than "
                f"workers_per_node = {side.workers_per_node}, and each worker needs a GPU; use "
                f"{side.workers_per_node} or more, or 0 for as many as have workers"
            )


def labels_are_ones(config: "RunConfig") -> Iterator[str]:
    """`cluster.attention.label` and `cluster.expert.label` are KEY=VALUE."""
    for name, side in _sides(config):
        if side.label and not _LABEL.fullmatch(side.label):
            yield (
                f"cluster.{name}.label = {format_value(side.label)}; expected KEY=VALUE, as in "
                "`ray start --labels`, such as pool=a"
            )


def nic_map_names_workers(config: "RunConfig") -> Iterator[str]:
    """`cluster.nic_map` gives workers of this run at least one device each."""
    workers = config.parallel.worker_names
    for worker, devices in config.cluster.nic_map.items():
        if worker not in workers:
            few = ", ".join(workers[:_FEW]) + (", ..." if len(workers) > _FEW else "")
            yield (
                f"cluster.nic_map names {worker}, which is no worker of this run; its workers are "
                f"{few}"
            )
        if not devices:
            yield f"cluster.nic_map gives {worker} no device; name one, or leave {worker} out"
        for device in devices:
            if not _DEVICE.fullmatch(device):
                yield (
                    f"cluster.nic_map gives {worker} the device {format_value(device)}; expected "
                    "one name per text, as in /sys/class/infiniband or /sys/class/net"
                )


def _sides(config: "RunConfig") -> tuple[tuple[str, SideConfig], ...]:
    return (("attention", config.cluster.attention), ("expert", config.cluster.expert))


def _given(side: SideConfig) -> bool:
    """Whether anything in `side` is not its default, which means nothing.

    Not by comparison as a whole: it may stand for a section that is wrong elsewhere.
    """
    return bool(side.workers_per_node or side.gpus_per_node or side.accelerator or side.label)


CLUSTER_RULES: tuple[Callable[["RunConfig"], Iterator[str]], ...] = (
    address_is_one,
    clusters_are_joined,
    nodes_are_for_clusters,
    colocated_nodes_are_attentions,
    gpus_are_for_cuda,
    gpus_hold_workers,
    labels_are_ones,
    nic_map_names_workers,
)
