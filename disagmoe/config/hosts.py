"""How expert workers are divided among hosts, for rows that go once to each host."""

from typing import TYPE_CHECKING

from disagmoe.config.parallel import COLOCATED

if TYPE_CHECKING:  # run.py uses rules that use this
    from collections.abc import Iterator

    from disagmoe.config.run import RunConfig


def workers_per_host(config: "RunConfig") -> int:
    """Return how many expert workers of a group share a host, with `dedupe = "node"`: 0 where it is
    another, or where each host has one and `rank` is the same."""
    if config.parallel.dedupe != "node":
        return 0
    count = config.parallel.workers_per_host or _per_node(config) or _planned(config)
    return count if count > 1 else 0


def _per_node(config: "RunConfig") -> int:
    """As the cluster is asked for; 0 where that is left to what is found there."""
    if config.cluster.mode == "local":
        return 0
    colocated = config.parallel.schedule in COLOCATED
    side = config.cluster.attention if colocated else config.cluster.expert
    return side.workers_per_node


def _planned(config: "RunConfig") -> int:
    """As the planning commands take hosts to be."""
    parallel, per_host = config.parallel, config.hardware.workers_per_node
    if not config.hardware.mixed_nodes or parallel.schedule in COLOCATED:
        return per_host
    mixed_hosts = -(-(parallel.attention_workers + parallel.expert_workers) // per_host)
    return -(-parallel.expert_workers // mixed_hosts)


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


def unknown_hosts(config: "RunConfig") -> list[str]:
    """Return why a run cannot know which expert workers share a host, for `dedupe = "node"`; [] on
    one machine, where any division is as good."""
    parallel, cluster = config.parallel, config.cluster
    if parallel.dedupe != "node" or cluster.mode == "local":
        return []
    count = parallel.workers_per_host or _per_node(config)
    if not count:
        return [
            'parallel.dedupe = "node" needs the number of expert workers on each host; set '
            "cluster.expert.workers_per_node, or cluster.attention.workers_per_node where the "
            "sides share workers"
        ]
    groups, workers = parallel.rings * parallel.groups, parallel.expert_workers
    if groups > 1 and workers % count and count % workers:
        return [
            f'parallel.dedupe = "node" with {workers} expert workers per group and {count} on each '
            "node: hosts would divide the groups unequally; use a multiple or a divisor of "
            f"{workers} per node"
        ]
    return []
