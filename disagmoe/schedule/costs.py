"""How long each op and transfer takes, as builders and bounds see it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum, auto
from typing import Protocol, Self

from disagmoe.errors import ScheduleError
from disagmoe.schedule.ir import INSIDE_HOSTS, Op, SlotKind


class Way(Enum):
    """What transfers pass, in this order."""

    NEAR_SOURCE = auto()
    """Links between the workers of a node, at the sender."""
    OUT = auto()
    """The sender's way to other nodes."""
    IN = auto()
    """The receiver's way from other nodes."""
    NEAR_TARGET = auto()


@dataclass(frozen=True, slots=True)
class Leg:
    """How long a transfer keeps one of its ways busy."""

    way: Way
    time: float


@dataclass(frozen=True, slots=True)
class Link:
    """A transfer on the ways that it passes, which is there `latency` after the last of them is
    done with it. Each takes it on from when the one before has begun."""

    legs: tuple[Leg, ...]
    latency: float = 0.0

    @property
    def time(self) -> float:
        """The least time from its begin until it is there."""
        return max((leg.time for leg in self.legs), default=0.0) + self.latency


class Times(Protocol):
    """Durations by op, payload and layer of the ring (None: embedding and head)."""

    def compute(self, op: Op, layer: int | None) -> float:
        """Duration of a compute op."""

    def link(self, kind: SlotKind, layer: int) -> Link:
        """A payload on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCosts:
    """Seconds (or any one unit) of each op of one micro-batch, and of each payload on its channel.

    The defaults are proportions, not measurements: a backward costs two forwards and a transfer
    half a forward, inside a host a tenth.

    Raises:
        ScheduleError: for a cost that is negative or not finite.
    """

    embed: float = 0.05
    attn_fwd: float = 1.0
    experts_fwd: float = 1.0
    head: float = 1.0
    head_eval: float = 0.4
    experts_bwd: float = 2.0
    experts_dgrad: float = 1.0
    experts_wgrad: float = 1.0
    attn_bwd: float = 2.0
    embed_bwd: float = 0.05
    fan_out: float = 0.05
    gather_add: float = 0.05
    fan_out_bwd: float = 0.05
    gather_add_bwd: float = 0.05
    rows: float = 0.5
    outputs: float = 0.5
    residual: float = 0.25
    doutputs: float = 0.5
    drows: float = 0.5
    dresidual: float = 0.25
    fan_rows: float = 0.1
    near_outputs: float = 0.1
    fan_doutputs: float = 0.1
    near_drows: float = 0.1

    def __post_init__(self) -> None:
        for cost in fields(self):
            value = getattr(self, cost.name)
            if not (math.isfinite(value) and value >= 0):
                raise ScheduleError(f"cost of {cost.name} is {value}; use a finite number >= 0")

    @classmethod
    def from_seconds(cls, seconds: Mapping[str, float]) -> Self:
        """Costs from measurements, some of which may be missing (what this layout does not do);
        those keep their proportion to the measured ones as a whole.

        Raises:
            ScheduleError: for no measurement, a name that is no cost, or a time that is negative or
                not finite.
        """
        usual = cls().to_dict()
        unknown = sorted(set(seconds) - set(usual))
        if unknown or not seconds:
            what = f"no op or transfer: {', '.join(unknown)}" if unknown else "no measurement"
            raise ScheduleError(f"{what}; costs are those of {', '.join(usual)}")
        scale = sum(seconds.values()) / sum(usual[name] for name in seconds)
        return cls(**{name: seconds.get(name, scale * cost) for name, cost in usual.items()})

    def to_dict(self) -> dict[str, float]:
        """Every cost by name, as in the config section `parallel.costs`."""
        return asdict(self)

    def compute(self, op: Op, layer: int | None = None) -> float:
        """Duration of a compute op, the same in every layer; `reduce_counts` is a message of a few
        bytes and counts 0."""
        del layer
        if op is Op.REDUCE_COUNTS:
            return 0.0
        return float(getattr(self, op.value))

    def transfer(self, kind: SlotKind) -> float:
        """Duration of a payload on its channel."""
        return float(getattr(self, kind.value))

    def link(self, kind: SlotKind, layer: int) -> Link:
        """A payload that keeps its sender's way out and its receiver's way in busy alike, or the
        links inside its group's hosts."""
        del layer
        time = self.transfer(kind)
        if kind in INSIDE_HOSTS:
            return Link((Leg(Way.NEAR_SOURCE, time),))
        return Link((Leg(Way.OUT, time), Leg(Way.IN, time)))
