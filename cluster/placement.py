"""Workers on nodes: one placement group, one bundle per node, each side on nodes of its own."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from disagmoe.errors import PlacementError
from disagmoe.schedule.layout import Side, Worker

NODE_RESOURCES = {
    Side.ATTENTION: "attention_node",
    Side.EXPERT: "expert_node",
    Side.COLOCATED: "colocated_node",
}
"""Custom resource that a node offers for each side whose workers it takes."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is asked of one node."""

    side: Side
    workers: tuple[str, ...]
    gpus: float

    @property
    def resources(self) -> dict[str, float]:
        """As Ray takes them."""
        needs = {NODE_RESOURCES[self.side]: 1.0, "CPU": float(len(self.workers))}
        return needs | ({"GPU": self.gpus} if self.gpus else {})

    def __str__(self) -> str:
        needs = ", ".join(f"{name} {count:g}" for name, count in self.resources.items())
        return f"{' '.join(self.workers)}: {needs}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker goes."""

    host: str
    """Address of its node."""
    strategy: PlacementGroupSchedulingStrategy


def bundles(
    workers: Iterable[Worker], workers_per_node: int, gpus_per_worker: float
) -> tuple[Bundle, ...]:
    """Divide `workers` among nodes in their order, each side on nodes of its own."""
    sides: dict[Side, list[str]] = {}
    for worker in workers:
        sides.setdefault(worker.group.side, []).append(str(worker))
    return tuple(
        Bundle(side, tuple(part), gpus_per_worker * len(part))
        for side, names in sides.items()
        for part in (
            names[start : start + workers_per_node]
            for start in range(0, len(names), workers_per_node)
        )
    )


@contextmanager
def placed(asked: Sequence[Bundle], timeout_s: float) -> Iterator[dict[str, Place]]:
    """Reserve a node for each of `asked`, and return the place of each worker by name; the nodes
    are free again after the block.

    Raises:
        PlacementError: this cluster has no such nodes, or none free within `timeout_s`.
    """
    group = placement_group([bundle.resources for bundle in asked], strategy="STRICT_SPREAD")
    try:
        try:
            ray.get(group.ready(), timeout=timeout_s)
        except GetTimeoutError:
            raise PlacementError(explain(asked, _nodes(), timeout_s)) from None
        yield _places(group, asked)
    finally:
        remove_placement_group(group)


def explain(asked: Sequence[Bundle], nodes: Sequence[Mapping[str, Any]], waited_s: float) -> str:
    """Say what was asked and what each node has, for Ray cannot say why it waits."""
    wanted = "\n".join(f"  {bundle}" for bundle in asked)
    had = "\n".join(
        f"  {node['NodeManagerAddress']}: "
        + ", ".join(f"{name} {count:g}" for name, count in _shown(node["Resources"]))
        for node in nodes
    )
    return (
        f"this cluster has not given {len(asked)} nodes within {waited_s:g} s. Asked, one node "
        f"each:\n{wanted}\nNodes have, in use or not:\n{had}\n"
        "start nodes with `ray start --resources '{\"attention_node\": 1}'` (or expert_node, "
        "colocated_node), or end what else runs there"
    )


def _shown(resources: Mapping[str, float]) -> list[tuple[str, float]]:
    ours = {"CPU", "GPU", *NODE_RESOURCES.values()}
    return sorted((name, count) for name, count in resources.items() if name in ours)


def _nodes() -> list[Mapping[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _places(group: PlacementGroup, asked: Sequence[Bundle]) -> dict[str, Place]:
    address = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    node_of = placement_group_table(group)["bundles_to_node_id"]
    hosts = [address[node_of[index]] for index in range(len(asked))]
    return {
        worker: Place(
            hosts[index],
            PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        )
        for bundle, index in zip(asked, by_address(asked, hosts), strict=True)
        for worker in bundle.workers
    }


def by_address(asked: Sequence[Bundle], hosts: Sequence[str]) -> list[int]:
    """Return for each of `asked` the bundle that it takes: bundles that ask for the same are
    exchanged so that workers follow their hosts' addresses, whichever way Ray has placed them."""
    alike: dict[tuple[Side, float, int], list[int]] = {}
    for index, bundle in enumerate(asked):
        alike.setdefault((bundle.side, bundle.gpus, len(bundle.workers)), []).append(index)
    taken = list(range(len(asked)))
    for indices in alike.values():
        ordered = sorted(indices, key=lambda index: (_numbers(hosts[index]), hosts[index]))
        for place, index in zip(indices, ordered, strict=True):
            taken[place] = index
    return taken


def _numbers(address: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", address)]
