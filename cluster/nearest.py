"""The config nearest to one that does not fit which a cluster can hold."""

import itertools
import math
from collections.abc import Iterator, Sequence

from disagmoe.cluster.bundles import SECTIONS, cluster_bundles, sides_of, with_sides
from disagmoe.cluster.matching import all_placed, in_total
from disagmoe.cluster.nodes import Node
from disagmoe.config.cluster import SideConfig
from disagmoe.config.parallel import COLOCATED, ParallelConfig
from disagmoe.config.rules import problems
from disagmoe.config.run import RunConfig
from disagmoe.config.tomlwrite import format_value
from disagmoe.schedule.layout import Side

_MOST_WORK = 2_000_000
"""Pairs of a bundle and a node that are looked at before the search gives up; a second or two."""
_MOST_COUNTS = 5000
"""Combinations of smaller counts that are all tried."""
_MANY = 2**31
_COUNTS = ("rings", "groups", "attention_workers", "expert_workers")


def nearest_fit(config: RunConfig, nodes: Sequence[Node]) -> list[str]:
    """Return settings, such as `parallel.expert_workers = 2`, with which `config` fits `nodes`.

    All workers on fewer, more or other nodes come first, then as many workers as possible, with as
    few settings changed as possible; of large counts only one is changed. [] when nothing fits, or
    nothing was found in reasonable time.
    """
    left = _MOST_WORK
    for candidate in _candidates(config, nodes):
        asked = cluster_bundles(candidate)
        left -= len(asked) * len(nodes)
        if all_placed(asked, nodes, in_total):
            return list(_changes(config, candidate))
        if left <= 0:
            break
    return []


def _candidates(config: RunConfig, nodes: Sequence[Node]) -> Iterator[RunConfig]:
    yield from _on_other_nodes(config, nodes)
    for parallel in _fewer_workers(config.parallel):
        smaller = config.model_copy(update={"parallel": parallel})
        fitting = _on_other_nodes(smaller, nodes)
        first = next(fitting, None)
        if first is not None and not problems(smaller):
            yield first
            yield from fitting


def _fewer_workers(parallel: ParallelConfig) -> Iterator[ParallelConfig]:
    """Yield smaller counts: most workers first, then fewest changes."""
    asked = [int(getattr(parallel, name)) for name in _COUNTS]
    colocated = parallel.schedule in COLOCATED
    if colocated:
        asked.pop()  # the same as attention_workers

    def far(counts: Sequence[int]) -> tuple[int, int]:
        rings, groups, *workers = counts
        return -rings * groups * sum(workers), sum(map(int.__ne__, counts, asked))

    for counts in sorted(_smaller(asked), key=far):
        both = (*counts, counts[-1]) if colocated else counts
        update: dict[str, object] = dict(zip(_COUNTS, both, strict=True))
        if update["groups"] != parallel.groups:
            update["residual"] = "auto"
        yield parallel.model_copy(update=update)


def _smaller(asked: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield all smaller counts, or where they are too many those with one change."""
    if math.prod(asked) <= _MOST_COUNTS:
        yield from itertools.product(*(range(1, count + 1) for count in asked))
        return
    for index, count in enumerate(asked):
        for less in range(1, count):
            yield (*asked[:index], less, *asked[index + 1 :])


def _on_other_nodes(config: RunConfig, nodes: Sequence[Node]) -> Iterator[RunConfig]:
    """Yield `config`, then those with other workers per node that its nodes could take; without
    those for which a side has too few nodes whatever they have."""
    sides = sides_of(config)
    choices = []
    for side, given in sides.items():
        own = [node for node in nodes if node.offers(side, given.label)]
        capacities = _capacities(config, own)
        workers = _workers(config.parallel, side)
        choices.append(
            [
                near
                for kind in _accelerators(given, own)
                for near in _by_distance(
                    given.model_copy(update={"accelerator": kind}), set(capacities), workers
                )
                if near.workers_per_node * len(capacities) >= workers
            ]
        )
    for choice in itertools.product(*choices):
        yield with_sides(config, dict(zip(sides, choice, strict=True)))


def _workers(parallel: ParallelConfig, side: Side) -> int:
    count = parallel.expert_workers if side is Side.EXPERT else parallel.attention_workers
    return parallel.rings * parallel.groups * count


def _capacities(config: RunConfig, nodes: Sequence[Node]) -> list[int]:
    """How many workers of a side each of its `nodes` could take, by its GPUs and CPUs."""
    cuda = config.cluster.device == "cuda"
    return [min(int(node.total.get("CPU", 0)), node.gpus if cuda else _MANY) for node in nodes]


def _accelerators(given: SideConfig, nodes: Sequence[Node]) -> list[str]:
    """The kind of GPU asked for; if one is, then those that the side's `nodes` have."""
    there = [kind for node in nodes if given.accelerator for kind in node.accelerators]
    return list(dict.fromkeys([given.accelerator, *there]))


def _by_distance(given: SideConfig, capacities: set[int], workers: int) -> Iterator[SideConfig]:
    """Yield `given`, then what else its nodes could take, with and without GPUs to spare."""
    yield given
    asked = given.workers_per_node
    possible = {min(capacity, workers) for capacity in capacities if capacity} | {asked}
    for count in sorted(possible, key=lambda count: (abs(count - asked), count)):
        spare = {given.gpus_per_node, 0} if count <= given.gpus_per_node else {0}
        for gpus in sorted(spare, reverse=True):
            yield given.model_copy(update={"workers_per_node": count, "gpus_per_node": gpus})


def _changes(before: RunConfig, after: RunConfig) -> Iterator[str]:
    for name in _COUNTS:
        if getattr(before.parallel, name) != getattr(after.parallel, name):
            yield f"parallel.{name} = {getattr(after.parallel, name)}"
    old, new = sides_of(before), sides_of(after)
    for side, given in new.items():
        for key in ("workers_per_node", "gpus_per_node", "accelerator"):
            if getattr(old[side], key) != getattr(given, key):
                value = format_value(getattr(given, key))
                yield f"cluster.{SECTIONS[side]}.{key} = {value}"
