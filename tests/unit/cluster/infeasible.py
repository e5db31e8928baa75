"""Ten requests that the nodes of tests/ray/nodes.py cannot hold, and what is said of each."""

from dataclasses import dataclass
from pathlib import Path

from disagmoe.cluster.nodes import Node
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from tests.unit.cluster.clusters import node

ROOT = Path(__file__).resolve().parents[3]
BASE = (
    *("cluster.mode=cluster", "cluster.device=cpu", "model.experts=64", "model.layers=4"),
    *("train.global_batch_size=256", "parallel.micro_batch_size=64"),
)


def the_five(cpus: float, gpus: float, roles: tuple[dict[str, float], ...]) -> list[Node]:
    """The head and the five nodes, as Ray would show them."""
    first, *others = roles
    return [
        node(9, CPU=cpus),
        node(1, CPU=cpus, GPU=gpus, **first),
        *(node(number, CPU=cpus, **role) for number, role in enumerate(others, start=2)),
    ]


@dataclass(frozen=True, slots=True)
class Request:
    """A run that has no place."""

    name: str
    sets: tuple[str, ...]

    @property
    def config(self) -> RunConfig:
        """What is asked; its workers per node may be 0."""
        return override(RunConfig.load(ROOT / "configs/tiny.toml"), [*BASE, *self.sets])


REQUESTS = (
    Request("more experts than expert nodes", ("parallel.expert_workers=4",)),
    Request("more attention than attention nodes", ("parallel.attention_workers=4",)),
    Request(
        "a node that offers both cannot have both",
        ("parallel.attention_workers=3", "parallel.expert_workers=3"),
    ),
    Request("more rings than nodes", ("parallel.rings=8",)),
    Request(
        "more groups than nodes", ("parallel.groups=4", "cluster.attention.workers_per_node=2")
    ),
    Request("no nodes for workers that have both", ("parallel.schedule=ep_1f1b",)),
    Request("no GPUs where experts are", ("cluster.device=cuda",)),
    Request(
        "another kind of GPU",
        ("cluster.device=cuda", "cluster.attention.accelerator=H800"),
    ),
    Request(
        "more GPUs on a node than it has",
        ("cluster.device=cuda", "cluster.attention.gpus_per_node=8"),
    ),
    Request(
        "more workers on a node than it has CPUs",
        ("parallel.expert_workers=64", "cluster.expert.workers_per_node=64"),
    ),
)
