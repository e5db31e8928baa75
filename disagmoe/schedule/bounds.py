"""Lower bounds on the time of a step: no order of its ops can be faster.

The setting is that of timeline.py: all micro-batches pass the same chain of ops and transfers, each
resource (a group's compute, its way out, its way in, its NVLink) does one thing at a time, and at
most K micro-batches are in flight. The proofs are sketched at each bound; none assumes a policy, so
they hold for every schedule, with every residual and for ops and transfers of any length.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from disagmoe.schedule.chain import Place, Wire, places
from disagmoe.schedule.costs import Times, Way
from disagmoe.schedule.ir import Op, ProgramSpec
from disagmoe.schedule.layout import Group


@dataclass(frozen=True, slots=True)
class Bound:
    """A time that no schedule can beat, and what stands in the way."""

    name: str
    time: float


def lower_bound(
    spec: ProgramSpec, costs: Times, in_flight: int, *, exposed_exchanges: bool = False
) -> Bound:
    """Return the largest of all bounds; the first of equal ones.

    `exposed_exchanges` counts a group's all-to-alls as its compute (`ep_1f1b`).
    """
    paths = paths_of(spec, costs, exposed_exchanges=exposed_exchanges)
    return max(
        (*_resource_bounds(paths), chain_bound(paths), in_flight_bound(paths, in_flight)),
        key=lambda bound: bound.time,
    )


@dataclass(frozen=True, slots=True)
class Use:
    """An item of a micro-batch (an op, or a transfer) on a resource."""

    head: float
    """The longest way to its start within its micro-batch."""
    time: float
    tail: float
    """The longest way from its end to the end of its micro-batch."""


@dataclass(frozen=True, slots=True)
class Paths:
    """A micro-batch as its uses of resources."""

    micro_batches: int
    length: float
    """Longest way through the chain of a micro-batch (Lambda)."""
    heads: dict[tuple[Op, int | None], float]
    """The longest way to the start of each op, by op and layer."""
    uses: dict[str, tuple[Use, ...]]
    """Uses of each resource, named `F0`, `F0 out`, `F0 in` or `F0 NVLink`."""
    first: tuple[Use, ...]
    """The ops that a micro-batch begins with on one group, before anything is sent."""
    last: tuple[Use, ...]
    """The ops that it ends with on one group, after all has arrived."""

    def work(self, resource: str) -> float:
        """Time that one micro-batch keeps `resource` busy."""
        return sum(use.time for use in self.uses[resource])


def paths_of(spec: ProgramSpec, costs: Times, *, exposed_exchanges: bool = False) -> Paths:
    """Return the longest ways through the chain, to and from everything in it."""
    chain = places(spec, costs)
    heads, tails = _heads(chain), _tails(chain)
    ops = [
        Use(head, place.time, tail) for head, place, tail in zip(heads, chain, tails, strict=True)
    ]
    groups = spec.layout.all_groups
    uses: dict[str, list[Use]] = {}
    for place, op in zip(chain, ops, strict=True):
        uses.setdefault(str(groups[place.group]), []).append(op)
        for wire in place.wires:
            reader = ops[wire.reader]
            ends = op.head + op.time, reader.time + reader.tail
            for resource, use in _uses(wire, ends, groups, exposed_exchanges=exposed_exchanges):
                uses.setdefault(resource, []).append(use)
    return Paths(
        micro_batches=spec.micro_batches,
        length=max(op.head + op.time + op.tail for op in ops),
        heads={
            (place.compute.op, place.compute.layer): head
            for place, head in zip(chain, heads, strict=True)
        },
        uses={name: tuple(found) for name, found in uses.items()},
        first=tuple(ops[: _beginning(chain)]),
        last=tuple(ops[len(ops) - _ending(chain) :]),
    )


def _uses(
    wire: Wire, ends: tuple[float, float], groups: tuple[Group, ...], *, exposed_exchanges: bool
) -> Iterator[tuple[str, Use]]:
    """Yield what `wire` keeps busy; `ends` are the longest ways to and from it. No leg begins
    before the transfer does, and what it carries is there `latency` after a leg's end at best."""
    before, after = ends
    source, target = groups[wire.source], groups[wire.target]
    for leg in wire.link.legs:
        use = Use(before, leg.time, wire.link.latency + after)
        match leg.way:
            case Way.OUT:
                yield f"{source} out", use
            case Way.IN:
                yield f"{target} in", use
            case Way.NEAR_SOURCE:
                yield f"{source} NVLink", use
            case Way.NEAR_TARGET:
                yield f"{target} NVLink", use
    if exposed_exchanges and wire.source == wire.target:
        yield str(source), Use(before, wire.time, after)


def _heads(chain: tuple[Place, ...]) -> list[float]:
    heads = [0.0] * len(chain)
    for at, place in enumerate(chain):
        end = heads[at] + place.time
        for wire in place.wires:
            heads[wire.reader] = max(heads[wire.reader], end + wire.time)
        if place.following is not None:
            heads[place.following] = max(heads[place.following], end)
    return heads


def _tails(chain: tuple[Place, ...]) -> list[float]:
    tails = [0.0] * len(chain)
    for at in reversed(range(len(chain))):
        place = chain[at]
        after = [wire.time + chain[wire.reader].time + tails[wire.reader] for wire in place.wires]
        if place.following is not None:
            after.append(chain[place.following].time + tails[place.following])
        tails[at] = max(after, default=0.0)
    return tails


def _beginning(chain: tuple[Place, ...]) -> int:
    """How many ops stand at the beginning without a transfer between them."""
    return 1 + next(at for at, place in enumerate(chain) if place.wires)


def _ending(chain: tuple[Place, ...]) -> int:
    """How many ops stand at the end without a transfer between them."""
    at = len(chain) - 1
    while chain[at - 1].following == at:
        at -= 1
    return len(chain) - at


def work_bound(uses: tuple[Use, ...], micro_batches: int) -> float:
    """All work of a resource: it does one thing at a time."""
    return micro_batches * sum(use.time for use in uses)


def head_tail_bound(uses: tuple[Use, ...], micro_batches: int) -> float:
    """All work of a resource, after the shortest way to it and before the shortest way from it.

    It cannot start earlier than `head`, and after its last use some micro-batch still has `tail`
    to go. For the last expert group of equal groups this is the sum form of the ring:
    m(L/p)(f + f_b) + (p-1)(a + f + 2c + a_b + f_b + 2c_b) + (a + c + a_b + c_b).
    """
    head = min(use.head for use in uses)
    tail = min(use.tail for use in uses)
    return head + work_bound(uses, micro_batches) + tail


def _resource_bounds(paths: Paths) -> Iterator[Bound]:
    for name, uses in paths.uses.items():
        work = work_bound(uses, paths.micro_batches)
        whole = head_tail_bound(uses, paths.micro_batches)
        yield Bound(
            f"work of {name}" if whole == work else f"fill, work and drain of {name}", whole
        )


def chain_bound(paths: Paths) -> Bound:
    """One micro-batch from end to end."""
    return Bound("chain of a micro-batch", paths.length)


def in_flight_bound(paths: Paths, in_flight: int) -> Bound:
    """m micro-batches of length Lambda through K places: m Lambda / K, and what the ramps add.

    Count from the start of an op u at the beginning to the end of an op w at the end, both on one
    group each: N(t) micro-batches are between them, m times their distance D = integral of N over
    the step. Starts of u are time_u apart and the first comes after head_u, so fewer than K are
    there at first, and in the same way at the end:
    K (T - head_u - tail_w) >= m D + (time_u + time_w) K (K-1) / 2, with K at most m.
    (Where both ramps meet, N = started + unfinished - m keeps both terms.)
    """
    depth = min(in_flight, paths.micro_batches)
    return Bound(
        f"{depth} in flight",
        max(
            start.head
            + end.tail
            + paths.micro_batches * (end.head + end.time - start.head) / depth
            + (start.time + end.time) * (depth - 1) / 2
            for start in paths.first
            for end in paths.last
        ),
    )
