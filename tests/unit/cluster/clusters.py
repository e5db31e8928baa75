"""Nodes of clusters that never were."""

from disagmoe.cluster.nodes import Node


def node(number: int, *, free: dict[str, float] | None = None, **total: float) -> Node:
    """Node `number` at 10.0.0.number, free if not said otherwise."""
    return Node(
        id=f"{number:x}" * 16,
        host=f"10.0.0.{number}",
        total=total,
        free=total if free is None else free,
    )


def attention(number: int, **total: float) -> Node:
    """A node for attention workers, with 4 CPUs if not said otherwise."""
    return node(number, **{"attention_node": 1.0, "CPU": 4.0, **total})


def expert(number: int, **total: float) -> Node:
    """A node for expert workers, with 4 CPUs if not said otherwise."""
    return node(number, **{"expert_node": 1.0, "CPU": 4.0, **total})
