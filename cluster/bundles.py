"""What a run asks of nodes: one bundle each, every side on nodes of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disagmoe.cluster.nodes import ACCELERATOR, NODE_RESOURCES, Node
from disagmoe.config.cluster import SideConfig
from disagmoe.config.parallel import COLOCATED, ParallelConfig
from disagmoe.config.run import RunConfig
from disagmoe.schedule.layout import Side, Worker

SIDE_NAMES = {
    Side.ATTENTION: "attention",
    Side.EXPERT: "experts",
    Side.COLOCATED: "attention with experts",
}

SECTIONS = {Side.ATTENTION: "attention", Side.EXPERT: "expert", Side.COLOCATED: "attention"}
"""Part of `cluster` that holds the settings of each side's nodes."""

_A_BIT = 0.001  # of a node's one accelerator_type: enough to be on a node that has it
_SLACK = 1e-6  # Ray keeps multiples of 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What is asked of one node."""

    side: Side | None
    """Whose nodes; None for the one node `node`."""
    workers: tuple[str, ...]
    cpus: float
    gpus: float = 0.0
    accelerator: str = ""
    """Kind of the node's GPUs; empty for any."""
    label: str = ""
    """What its node is known by, such as `pool=a`; empty for the resource of its side."""
    node: str = ""
    """Id of the only node that will do; empty for any."""

    @property
    def resources(self) -> dict[str, float]:
        """As Ray takes them."""
        by_resource = self.side is not None and not self.label
        needs = {self.known_by: 1.0} if by_resource else {}
        needs["CPU"] = self.cpus
        if self.gpus:
            needs["GPU"] = self.gpus
        if self.accelerator:
            needs[f"{ACCELERATOR}{self.accelerator}"] = _A_BIT
        return needs

    @property
    def labels(self) -> dict[str, str]:
        """Labels that its node must have."""
        if self.label:
            key, _, value = self.label.partition("=")
            return {key: value}
        return {"ray.io/node-id": self.node} if self.node else {}

    @property
    def known_by(self) -> str:
        """What shows that a node is for this side: a resource or a label."""
        if self.label:
            return f"label {self.label}"
        return "" if self.side is None else NODE_RESOURCES[self.side]

    def is_meant_for(self, node: Node) -> bool:
        """Whether `node` is one for this, whatever it has."""
        if self.side is None:
            return node.id == self.node
        return node.offers(self.side, self.label)

    def fits(self, node: Node, resources: Mapping[str, float]) -> bool:
        """Whether `node` is one for this, with `resources` of it."""
        if self.node and self.node != node.id:
            return False
        if self.label and not self.is_meant_for(node):
            return False
        return not self.lacking(resources)

    def lacking(self, resources: Mapping[str, float]) -> dict[str, float]:
        """What this needs more of than there is in `resources`, and how much it needs."""
        return {
            name: need
            for name, need in self.resources.items()
            if resources.get(name, 0) + _SLACK < need
        }

    def __str__(self) -> str:
        kind = f", accelerator {self.accelerator}" if self.accelerator else ""
        needs = (
            f"{name} {count:g}"
            for name, count in self.resources.items()
            if not name.startswith(ACCELERATOR)
        )
        by_label = [self.known_by] if self.label else []
        return ", ".join([*by_label, *needs]) + kind


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """How the workers of one side are put on a node."""

    workers: int
    """Most workers on it."""
    gpus: int = 0
    """GPUs that are reserved on it, if more than have workers."""
    accelerator: str = ""
    label: str = ""


def workers_by_side(parallel: ParallelConfig) -> dict[Side, list[str]]:
    """Return the names of all workers by side, in world-rank order."""
    sides: dict[Side, list[str]] = {}
    for name in parallel.worker_names:
        sides.setdefault(Worker.parse(name).group.side, []).append(name)
    return sides


def bundles(
    workers: Mapping[Side, Sequence[str]],
    shapes: Mapping[Side, NodeShape],
    gpus_per_worker: float,
) -> tuple[Bundle, ...]:
    """Divide `workers` among nodes in their order, each side on nodes of its own."""
    return tuple(
        Bundle(
            side=side,
            workers=(part := tuple(names[start : start + shapes[side].workers])),
            cpus=float(len(part)),
            gpus=max(gpus_per_worker * len(part), float(shapes[side].gpus)),
            accelerator=shapes[side].accelerator,
            label=shapes[side].label,
        )
        for side, names in workers.items()
        for start in range(0, len(names), shapes[side].workers)
    )


def cluster_bundles(config: RunConfig) -> tuple[Bundle, ...]:
    """Return what `config` asks of a cluster; `filled` has gone over it."""
    gpus_per_worker = 1.0 if config.cluster.device == "cuda" else 0.0
    return bundles(workers_by_side(config.parallel), _shapes(config), gpus_per_worker)


def _shapes(config: RunConfig) -> dict[Side, NodeShape]:
    return {
        side: NodeShape(
            workers=given.workers_per_node,
            gpus=given.gpus_per_node,
            accelerator=given.accelerator,
            label=given.label,
        )
        for side, given in sides_of(config).items()
    }


def sides_of(config: RunConfig) -> dict[Side, SideConfig]:
    """Return the settings of the nodes of each side that has workers."""
    if config.parallel.schedule in COLOCATED:
        return {Side.COLOCATED: config.cluster.attention}
    return {Side.ATTENTION: config.cluster.attention, Side.EXPERT: config.cluster.expert}


def with_sides(config: RunConfig, sides: Mapping[Side, SideConfig]) -> RunConfig:
    """Return `config` with the settings of `sides`, the inverse of `sides_of`."""
    update = {SECTIONS[side]: given for side, given in sides.items()}
    return config.model_copy(update={"cluster": config.cluster.model_copy(update=update)})


def has_gpus(config: RunConfig, nodes: Sequence[Node]) -> bool:
    """Whether there is a node with GPUs for each side that has workers."""
    return all(
        any(node.gpus for node in nodes if node.offers(side, given.label))
        for side, given in sides_of(config).items()
    )


def filled(config: RunConfig, nodes: Sequence[Node]) -> RunConfig:
    """Return `config`, whose device is resolved, with the workers per node of each side: where it
    is 0, the GPUs of that side's smallest node, or 1 on CPU."""

    def fill(side: Side, given: SideConfig) -> SideConfig:
        if given.workers_per_node:
            return given
        return given.model_copy(update={"workers_per_node": _workers_per_node(side, given)})

    def _workers_per_node(side: Side, given: SideConfig) -> int:
        if config.cluster.device != "cuda":
            return 1
        able = Bundle(
            side=side,
            workers=(),
            cpus=0.0,
            gpus=float(max(1, given.gpus_per_node)),
            accelerator=given.accelerator,
            label=given.label,
        )
        return min((node.gpus for node in nodes if able.fits(node, node.total)), default=1)

    return with_sides(config, {side: fill(side, given) for side, given in sides_of(config).items()})
