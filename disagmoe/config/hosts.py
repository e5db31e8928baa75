"""How expert workers are divided among hosts, for rows that go once to each host."""

from typing import TYPE_CHECKING

from disagmoe.config.hardware import HardwareConfig
from disagmoe.config.parallel import COLOCATED, ParallelConfig

if TYPE_CHECKING:  # run.py uses rules that use this
    from collections.abc import Iterator

    from disagmoe.config.run import RunConfig


def workers_per_host(config: "RunConfig") -> int:
    """Return how many expert workers of a group share a host, with `dedupe = "node"`: 0 where it is
    another, or where each host has one and `rank` is the same."""
    if config.parallel.dedupe != "node":
        return 0
    planned = planned_per_host(config.parallel, config.hardware)
    count = config.parallel.workers_per_host or _per_node(config) or planned
    return count if count > 1 else 0


def _per_node(config: "RunConfig") -> int:
    """As the cluster is asked for; 0 where that is left to what is found there."""
    if config.cluster.mode == "local":
        return 0
    colocated = config.parallel.schedule in COLOCATED
    side = config.cluster.attention if colocated else config.cluster.expert
    return side.workers_per_node


def planned_per_host(parallel: ParallelConfig, hardware: HardwareConfig) -> int:
    """Return how many expert workers of a group share a host as the planning commands take it."""
    if not hardware.mixed_nodes or parallel.schedule in COLOCATED:
        return hardware.workers_per_node
    return -(-parallel.expert_workers // mixed_hosts(parallel, hardware))


def mixed_hosts(parallel: ParallelConfig, hardware: HardwareConfig) -> int:
    """Return how many hosts a pair of groups fills whose sides share hosts."""
    workers = parallel.attention_workers + parallel.expert_workers
    return -(-workers // hardware.workers_per_node)


def hosts_are_those_of_the_cluster(config: "RunConfig") -> "Iterator[str]":
    """`parallel.workers_per_host` is for `dedupe = "node"`, and no other number than the cluster is
    asked for."""
    given, per_node = config.parallel.workers_per_host, _per_node(config)
    if given and config.parallel.dedupe != "node":
        yield (
            f"parallel.workers_per_host = {given} has no effect with parallel.dedupe = "
            f'"{config.parallel.dedupe}"; use 0, or dedupe = "node"'
        )
    elif given and per_node and given != per_node:
        yield (
            f"parallel.workers_per_host = {given}, but the cluster is asked for {per_node} workers "
            "on each node of experts; use 0, which takes that number"
        )


def unequal_hosts(config: "RunConfig") -> list[str]:
    """Return why expert workers do not share hosts as `dedupe = "node"` needs it, on a cluster that
    is asked for so many of them on each node; [] on one machine, where any division is as good."""
    parallel, per_node = config.parallel, _per_node(config)
    if parallel.dedupe != "node" or not per_node:
        return []
    found = list(hosts_are_those_of_the_cluster(config))
    groups, workers = parallel.rings * parallel.groups, parallel.expert_workers
    if groups > 1 and workers % per_node and per_node % workers:
        found.append(
            f'parallel.dedupe = "node" with {workers} expert workers per group and {per_node} on '
            "each node: hosts would divide the groups unequally; use a multiple or a divisor of "
            f"{workers} per node"
        )
    return found
