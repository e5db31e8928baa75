"""What a Ray cluster has, what of it is free, and who holds the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
import ray._private.state
from ray.util.placement_group import placement_group_table

from disagmoe.schedule.layout import Side

NODE_RESOURCES = {
    Side.ATTENTION: "attention_node",
    Side.EXPERT: "expert_node",
    Side.COLOCATED: "colocated_node",
}
"""Custom resource that a node offers for each side whose workers it takes."""

ACCELERATOR = "accelerator_type:"
"""What Ray puts before the kind of a node's GPUs, as the name of a resource of which there is 1."""

_HOLDING = ("CREATED", "PREPARED", "RESCHEDULING")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A living node."""

    id: str
    host: str
    """Its address; several nodes may share one on a machine that plays a cluster."""
    total: Mapping[str, float]
    """Resources by name."""
    free: Mapping[str, float]
    """What of them nobody holds; names that are missing are used up."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels by key, those of Ray's own among them."""

    @property
    def gpus(self) -> int:
        """Whole GPUs."""
        return int(self.total.get("GPU", 0))

    @property
    def accelerators(self) -> list[str]:
        """Kinds of its GPUs, such as `H800`."""
        return sorted(name.removeprefix(ACCELERATOR) for name in self.total if ACCELERATOR in name)

    def offers(self, side: Side, label: str = "") -> bool:
        """Whether it takes workers of `side`: by `label`, such as `pool=a`, where that is given,
        else by its resource."""
        if label:
            key, _, value = label.partition("=")
            return self.labels.get(key) == value
        return self.total.get(NODE_RESOURCES[side], 0) >= 1

    def __str__(self) -> str:
        return f"{self.host} (node {self.id[:8]})"


@dataclass(frozen=True, slots=True)
class Holder:
    """A placement group that holds part of a node."""

    name: str
    resources: Mapping[str, float]

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {count:g}" for name, count in sorted(self.resources.items()))
        return f"{self.name} ({shares})"


def read_nodes() -> list[Node]:
    """Return the living nodes of the Ray that this process is connected to, by address."""
    free = ray._private.state.available_resources_per_node()
    nodes = [
        Node(
            id=entry["NodeID"],
            host=entry["NodeManagerAddress"],
            total=entry["Resources"],
            free=free.get(entry["NodeID"], {}),
            labels=entry.get("Labels", {}),
        )
        for entry in ray.nodes()
        if entry["Alive"]
    ]
    return sorted(nodes, key=lambda node: (node.host, node.id))


def read_holders() -> dict[str, list[Holder]]:
    """Return by node id which placement groups hold parts of it."""
    return holders_of(placement_group_table().values())


def holders_of(groups: "Sequence[Mapping[str, Any]] | Any") -> dict[str, list[Holder]]:
    """Return by node id the holders among `groups`, rows of Ray's table of placement groups."""
    found: dict[str, list[Holder]] = {}
    for group in groups:
        if group["state"] not in _HOLDING:
            continue
        name = group["name"] or f"placement group {group['placement_group_id'][:8]}"
        for index, node in group["bundles_to_node_id"].items():
            if node:
                found.setdefault(node, []).append(Holder(name, group["bundles"][index]))
    return found
