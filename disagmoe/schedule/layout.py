"""Workers, groups and channels of the ring: who owns what, and who talks to whom."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from disagmoe.errors import ScheduleError

_NUMBER = re.compile("0|[1-9][0-9]*")  # one spelling each, so that writing and reading are inverses
_GROUP = re.compile(f"([AFC])({_NUMBER.pattern})")
_WORKER = re.compile(rf"(?:r([1-9][0-9]*)\.)?([^.]*)\.({_NUMBER.pattern})")


class Side(StrEnum):
    """Kind of a group: the attention or the expert role, or both on the same workers."""

    ATTENTION = "A"
    EXPERT = "F"
    COLOCATED = "C"


class Pass(StrEnum):
    """What a channel's payload is: activations forward, gradients backward; and inside a host, what
    gateways fan out to the experts, and parts of what they sum, both ways."""

    ACT = "act"
    GRAD = "grad"
    FAN = "fan"
    SUM = "sum"
    FAN_GRAD = "fan_grad"
    SUM_GRAD = "sum_grad"


HOPS = ("inter", "intra")
"""Of rows on their way: across the network, and inside a host."""
_NETWORK = (Pass.ACT, Pass.GRAD)
_FORWARD = (Pass.ACT, Pass.FAN, Pass.SUM)


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """A group of workers, written `A0` or `F1`, or `C0` where A0 and F0 share their workers."""

    side: Side
    index: int

    def __str__(self) -> str:
        return f"{self.side}{self.index}"

    @classmethod
    def parse(cls, text: str) -> "Group":
        """Read `A0`; raises ScheduleError for anything else."""
        match = _GROUP.fullmatch(text)
        if match is None:
            raise ScheduleError(f"{text!r} is no group; expected A, F or C and a number, as in A0")
        return cls(Side(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True, order=True)
class Worker:
    """One worker, written `A0.1`: second worker of group A0; in ring 1 and above `r1.A0.1`."""

    group: Group
    rank: int
    ring: int = 0

    def __str__(self) -> str:
        return f"{ring_prefix(self.ring)}{self.group}.{self.rank}"

    @classmethod
    def parse(cls, text: str) -> "Worker":
        """Read `A0.1` or `r1.A0.1`; raises ScheduleError for anything else."""
        match = _WORKER.fullmatch(text)
        if match is None:
            raise ScheduleError(f"{text!r} is no worker; expected group, dot, rank, as in A0.1")
        return cls(Group.parse(match[2]), int(match[3]), int(match[1] or 0))


def ring_prefix(ring: int) -> str:
    """What names of `ring` begin with: nothing for ring 0, as most runs have no other."""
    return f"r{ring}." if ring else ""


@dataclass(frozen=True, slots=True, order=True)
class Channel:
    """A one-way channel between roles, written `A0>F0.act`: from all workers of one group to all
    of another. Where both roles share their workers, a transfer on it is an all-to-all. From an
    expert group to itself, as in `F0>F0.fan`, it stays inside hosts."""

    source: Group
    target: Group
    direction: Pass

    def __hash__(self) -> int:
        # a verifier hashes millions of them: numbers only, no hash of a group
        return hash((self.source.index, self.target.index, self.source.side, self.direction))

    def __str__(self) -> str:
        return f"{self.source}>{self.target}.{self.direction}"

    @property
    def intra(self) -> bool:
        """Whether its transfers stay inside hosts, and do not cross the network."""
        return self.direction not in _NETWORK

    @property
    def hop(self) -> str:
        """Which of `HOPS` its transfers make."""
        return HOPS[self.intra]

    @property
    def forward(self) -> bool:
        """Whether it carries activations."""
        return self.direction in _FORWARD

    @classmethod
    def parse(cls, text: str) -> "Channel":
        """Read `A0>F0.act`; raises ScheduleError for anything else."""
        groups, _, direction = text.partition(".")
        source, arrow, target = groups.partition(">")
        if not arrow or direction not in set(Pass):
            raise ScheduleError(
                f"{text!r} is no channel; expected SOURCE>TARGET and one of "
                f"{', '.join(f'.{one}' for one in Pass)}"
            )
        return cls(Group.parse(source), Group.parse(target), Pass(direction))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The ring: `groups` attention groups of M workers and as many expert groups of N workers.

    Attention group g and expert group g are roles. In the split layout each role has workers of its
    own; in a `colocated` layout both are played by the same M = N workers of group Cg.
    """

    layers: int
    groups: int = 1
    attention_workers: int = 1
    expert_workers: int = 1
    direct_residual: bool = False
    """The residual stream goes from one attention group to the next on channels of its own."""
    fused_residual: bool = False
    """It goes through the experts: rows carry it, and one expert worker per token adds it to what
    it returns."""
    colocated: bool = False
    rings: int = 1
    """Copies of the whole ring in data parallel; all run the same programs."""
    workers_per_host: int = 0
    """Expert workers of a group on each host, which they fill in rank order. Where it is given,
    rows cross the network once per host and go in two hops (gateways.py); 0: straight to their
    expert workers."""

    def __post_init__(self) -> None:
        if not 1 <= self.groups <= self.layers:
            raise ScheduleError(
                f"{self.groups} groups for {self.layers} layers; use 1 to {self.layers} groups"
            )
        for name in ("attention_workers", "expert_workers", "rings"):
            if getattr(self, name) < 1:
                raise ScheduleError(f"{getattr(self, name)} {name}; use 1 or more")
        if self.direct_residual + self.fused_residual != (self.groups > 1):
            raise ScheduleError(
                "the residual is local for one group, and either direct or fused for more"
            )
        if self.workers_per_host < 0:
            raise ScheduleError(f"{self.workers_per_host} workers_per_host; use 0 or more")
        if self.colocated and self.attention_workers != self.expert_workers:
            raise ScheduleError(
                f"{self.attention_workers} attention and {self.expert_workers} expert workers "
                "cannot be the same workers; use equal numbers in a colocated layout"
            )

    def size(self, group: Group) -> int:
        """Workers in `group`."""
        return self.expert_workers if group.side is Side.EXPERT else self.attention_workers

    def members(self, group: Group, ring: int = 0) -> tuple[Worker, ...]:
        """Workers of `group` in one ring, in rank order."""
        return tuple(Worker(group, rank, ring) for rank in range(self.size(group)))

    @property
    def roles(self) -> tuple[Group, ...]:
        """All roles on the ring, attention first."""
        sides = (Side.ATTENTION, Side.EXPERT)
        return tuple(Group(side, g) for side in sides for g in range(self.groups))

    @property
    def all_groups(self) -> tuple[Group, ...]:
        """All groups that have workers: the roles themselves, or what plays two of them."""
        return tuple(dict.fromkeys(self.host(role) for role in self.roles))

    def host(self, role: Group) -> Group:
        """The group whose workers play `role`."""
        return Group(Side.COLOCATED, role.index) if self.colocated else role

    def process(self, role: Worker) -> Worker:
        """The worker that plays the role of `role`."""
        return Worker(self.host(role.group), role.rank, role.ring)

    def roles_of(self, group: Group) -> tuple[Group, ...]:
        """The roles that the workers of `group` play."""
        if group.side is Side.COLOCATED:
            return (Group(Side.ATTENTION, group.index), Group(Side.EXPERT, group.index))
        return (group,)

    def exchanges(self, channel: Channel) -> bool:
        """Whether both ends of `channel` are on the same workers, so that it is an all-to-all."""
        return self.host(channel.source) == self.host(channel.target)

    @property
    def two_hop(self) -> bool:
        """Whether rows cross the network once per host and are fanned out there."""
        return self.workers_per_host > 0

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All workers in world-rank order."""
        return tuple(
            worker
            for ring in range(self.rings)
            for group in self.all_groups
            for worker in self.members(group, ring)
        )

    def attention(self, layer: int) -> Group:
        """Attention group of `layer`; `layer == layers` gives the group of the head."""
        return Group(Side.ATTENTION, layer % self.groups)

    def experts(self, layer: int) -> Group:
        """Expert group of `layer`."""
        return Group(Side.EXPERT, layer % self.groups)

    @property
    def head(self) -> Group:
        """Group of the final norm, LM head and loss."""
        return self.attention(self.layers)

    @property
    def embedding(self) -> Group:
        """Group of the input embedding."""
        return self.attention(0)

    def layers_of(self, group: Group) -> range:
        """Layers that `group` owns."""
        return range(group.index, self.layers, self.groups)

    def dispatch(self, layer: int) -> Channel:
        """Attention to experts, rows forward."""
        return Channel(self.attention(layer), self.experts(layer), Pass.ACT)

    def combine(self, layer: int) -> Channel:
        """Experts to the next attention group, expert outputs forward."""
        return Channel(self.experts(layer), self.attention(layer + 1), Pass.ACT)

    def residual(self, layer: int) -> Channel:
        """Attention to the next attention group, residual stream forward (direct only)."""
        return Channel(self.attention(layer), self.attention(layer + 1), Pass.ACT)

    def combine_grad(self, layer: int) -> Channel:
        """Next attention group to experts: gradients of the expert outputs."""
        return Channel(self.attention(layer + 1), self.experts(layer), Pass.GRAD)

    def dispatch_grad(self, layer: int) -> Channel:
        """Experts to attention: gradients of rows and gate weights."""
        return Channel(self.experts(layer), self.attention(layer), Pass.GRAD)

    def inside(self, layer: int, direction: Pass) -> Channel:
        """Among the expert workers of a host (two hops only)."""
        return Channel(self.experts(layer), self.experts(layer), direction)

    def residual_grad(self, layer: int) -> Channel:
        """Next attention group to attention: gradient of the residual stream (direct only)."""
        return Channel(self.attention(layer + 1), self.attention(layer), Pass.GRAD)

    def channels(self) -> tuple[Channel, ...]:
        """Every channel of the ring once, in the fixed order in which all workers open them."""
        return tuple(dict.fromkeys(self._channels_by_layer()))

    def _channels_by_layer(self) -> Iterator[Channel]:
        for layer in range(min(self.layers, self.groups)):
            yield self.dispatch(layer)
            yield self.combine(layer)
            yield self.combine_grad(layer)
            yield self.dispatch_grad(layer)
            if self.two_hop:
                for direction in (Pass.FAN, Pass.SUM, Pass.FAN_GRAD, Pass.SUM_GRAD):
                    yield self.inside(layer, direction)
            if self.direct_residual:
                yield self.residual(layer)
                yield self.residual_grad(layer)
