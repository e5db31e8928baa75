"""Bundles on nodes, one on each: whether a cluster can hold a run, all its nodes free or as is."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from disagmoe.cluster.bundles import Bundle
from disagmoe.cluster.nodes import Node

Resources = Callable[[Node], Mapping[str, float]]


def in_total(node: Node) -> Mapping[str, float]:
    """All that a node has, in use or not."""
    return node.total


def now_free(node: Node) -> Mapping[str, float]:
    """What of a node nobody holds."""
    return node.free


def most_placed(
    asked: Sequence[Bundle], nodes: Sequence[Node], resources: Resources
) -> dict[int, int]:
    """Put as many bundles on nodes as can be, one on each; return node by bundle, as indices.

    A maximum matching by augmenting paths (Berge 1957).
    """
    able: dict[tuple[object, ...], list[int]] = {}
    fits = []
    for bundle in asked:
        key = (*bundle.resources.items(), bundle.node)
        if key not in able:
            able[key] = [i for i, node in enumerate(nodes) if bundle.fits(node, resources(node))]
        fits.append(able[key])
    placed: dict[int, int] = {}
    holder: dict[int, int] = {}
    for bundle_index in range(len(asked)):
        _augment(bundle_index, fits, placed, holder)
    return placed


def all_placed(asked: Sequence[Bundle], nodes: Sequence[Node], resources: Resources) -> bool:
    """Whether every one of `asked` can have a node of its own."""
    return len(most_placed(asked, nodes, resources)) == len(asked)


def _augment(
    first: int, fits: Sequence[Sequence[int]], placed: dict[int, int], holder: dict[int, int]
) -> None:
    """Place bundle `first` too, if need be by moving others; change nothing if it cannot be."""
    reached_by: dict[int, int] = {}
    queue = deque([first])
    while queue:
        bundle = queue.popleft()
        for node in fits[bundle]:
            if node in reached_by:
                continue
            reached_by[node] = bundle
            if node in holder:
                queue.append(holder[node])
                continue
            _move(node, reached_by, placed, holder)
            return


def _move(
    free: int, reached_by: Mapping[int, int], placed: dict[int, int], holder: dict[int, int]
) -> None:
    """Give the `free` node to the bundle that reached it, the node that this one leaves to the
    bundle that reached that, and so on."""
    node: int | None = free
    while node is not None:
        bundle = reached_by[node]
        left = placed.get(bundle)
        placed[bundle], holder[node] = node, bundle
        node = left
