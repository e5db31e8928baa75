"""Who exchanges with whom: everybody with everybody, or through gateways where rows go in two hops.

With two hops an attention worker talks to one expert worker of each host, its gateway there, which
hands on to the others. Gateways follow the rank alone, so that what attention worker r of one group
has sent comes back to attention worker r of the next one from the same gateways.
"""

from disagmoe.schedule.layout import Channel, Layout, Side, Worker


def hosts(layout: Layout) -> tuple[range, ...]:
    """Ranks of the expert workers on each host, which fill hosts in rank order; the last may have
    fewer. For layouts with two hops."""
    workers, size = layout.expert_workers, layout.workers_per_host
    return tuple(range(start, min(start + size, workers)) for start in range(0, workers, size))


def host_of(layout: Layout, rank: int) -> range:
    """Ranks of the expert workers on the host of expert worker `rank`."""
    return hosts(layout)[rank // layout.workers_per_host]


def gateway(layout: Layout, host: range, rank: int) -> int:
    """Rank of the expert worker on `host` that attention worker `rank` talks to: the one with its
    own number on its host, where hosts have that many; else they are taken in turn. Where both
    roles are on the same workers, that of its own host is itself."""
    return host[rank % layout.workers_per_host % len(host)]


def gateways(layout: Layout, layer: int, attention: Worker) -> tuple[Worker, ...]:
    """The expert workers of `layer` that an attention worker talks to, in the order in which it
    adds up what they return: one of each host, or all."""
    group = layout.experts(layer)
    if not layout.two_hop:
        return layout.members(group, attention.ring)
    ranks = (gateway(layout, host, attention.rank) for host in hosts(layout))
    return tuple(Worker(group, rank, attention.ring) for rank in ranks)


def served(layout: Layout, layer: int, experts: Worker) -> tuple[Worker, ...]:
    """The attention workers of `layer` (or of the head, for the number of layers) that an expert
    worker talks to, in rank order."""
    members = layout.members(layout.attention(layer), experts.ring)
    if not layout.two_hop:
        return members
    host = host_of(layout, experts.rank)
    return tuple(worker for worker in members if gateway(layout, host, worker.rank) == experts.rank)


def neighbours(layout: Layout, layer: int, experts: Worker) -> tuple[Worker, ...]:
    """The expert workers on the host of an expert worker, with itself, in rank order."""
    group = layout.experts(layer)
    return tuple(Worker(group, rank, experts.ring) for rank in host_of(layout, experts.rank))


def peers(layout: Layout, channel: Channel, worker: Worker, *, sends: bool) -> tuple[Worker, ...]:
    """The roles at the other end of `channel` that the process `worker` exchanges with, as one that
    sends or that receives on it, in rank order."""
    own, other = channel.source, channel.target
    if not sends:
        own, other = other, own
    role = Worker(own, worker.rank, worker.ring)
    if layout.two_hop:
        if channel.intra:
            return neighbours(layout, other.index, role)
        if other.side is Side.EXPERT:
            return gateways(layout, other.index, role)
        if own.side is Side.EXPERT:
            return served(layout, other.index, role)
    return layout.members(other, worker.ring)
