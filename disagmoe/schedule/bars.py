"""A timeline as bars in lanes: what a plan and a measured run have in common when drawn."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from disagmoe.errors import ScheduleError
from disagmoe.schedule.accounting import Shares, add_up
from disagmoe.schedule.bounds import Bound
from disagmoe.schedule.ir import Op
from disagmoe.schedule.layout import Channel


class Shade(StrEnum):
    """What a bar stands for; the value is its name in a legend, the order that of the legend."""

    EMBED = "embedding"
    EMBED_BWD = "embedding backward"
    ATTENTION_FWD = "attention forward"
    ATTENTION_BWD = "attention backward"
    EXPERTS_FWD = "experts forward"
    EXPERTS_BWD = "experts backward"
    EXPERTS_DGRAD = "experts backward, inputs"
    EXPERTS_WGRAD = "experts backward, weights"
    GATEWAY_FWD = "gateway forward"
    GATEWAY_BWD = "gateway backward"
    HEAD = "head"
    OPTIMIZER = "optimizer"
    DATA = "data"
    SEND = "sends, sums of gradients"
    NETWORK = "waits for the network"
    OTHERS = "waits for others"
    ACTIVATIONS = "transfer of activations"
    GRADIENTS = "transfer of gradients"


FORWARD = frozenset({Shade.EMBED, Shade.ATTENTION_FWD, Shade.EXPERTS_FWD, Shade.GATEWAY_FWD})
BACKWARD = frozenset(
    {
        Shade.HEAD,
        Shade.EXPERTS_BWD,
        Shade.EXPERTS_DGRAD,
        Shade.EXPERTS_WGRAD,
        Shade.GATEWAY_BWD,
        Shade.ATTENTION_BWD,
        Shade.EMBED_BWD,
    }
)

_OF_OP = {
    Op.EMBED: Shade.EMBED,
    Op.ATTN_FWD: Shade.ATTENTION_FWD,
    Op.EXPERTS_FWD: Shade.EXPERTS_FWD,
    Op.HEAD: Shade.HEAD,
    Op.HEAD_EVAL: Shade.HEAD,
    Op.EXPERTS_BWD: Shade.EXPERTS_BWD,
    Op.EXPERTS_DGRAD: Shade.EXPERTS_DGRAD,
    Op.EXPERTS_WGRAD: Shade.EXPERTS_WGRAD,
    Op.ATTN_BWD: Shade.ATTENTION_BWD,
    Op.EMBED_BWD: Shade.EMBED_BWD,
    Op.FAN_OUT: Shade.GATEWAY_FWD,
    Op.GATHER_ADD: Shade.GATEWAY_FWD,
    Op.FAN_OUT_BWD: Shade.GATEWAY_BWD,
    Op.GATHER_ADD_BWD: Shade.GATEWAY_BWD,
}


def op_shade(op: Op) -> Shade:
    """The shade of a compute op; a sum of choices is a wait for others."""
    return _OF_OP.get(op, Shade.OTHERS)


def transfer_shade(channel: Channel) -> Shade:
    """The shade of what `channel` carries."""
    return Shade.ACTIVATIONS if channel.forward else Shade.GRADIENTS


@dataclass(frozen=True, slots=True)
class Bar:
    """From `start` to `end` in a lane."""

    lane: str
    start: float
    end: float
    shade: Shade
    mb: int | None = None
    """The micro-batch of an op or a transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A timeline ready to be drawn; it begins at 0. Bars of one lane do not overlap."""

    headline: str
    """What runs."""
    makespan: float
    bound: Bound
    """How short it could be."""
    seconds: Mapping[str, Mapping[str, float]]
    """Time by group or worker and kind; one unit of a plan is one second."""
    unit: str
    """What time is measured in."""
    workers: tuple[str, ...]
    """Lanes of groups or workers."""
    channels: tuple[str, ...]
    """Lanes of transfers."""
    bars: tuple[Bar, ...]

    @property
    def gap(self) -> float:
        """Makespan over its lower bound, 1.0 at best."""
        return self.makespan / self.bound.time if self.bound.time else 1.0

    @property
    def shares(self) -> Shares:
        """What became of the time of all of them together."""
        return Shares.of(add_up(self.seconds.values()))

    @property
    def title(self) -> tuple[str, ...]:
        """Three lines: what runs, how long it takes, what became of the time."""
        shares = self.shares
        return (
            self.headline,
            f"makespan {self.makespan:.4g}{self._suffix}, lower bound "
            f"{self.bound.time:.4g}{self._suffix} ({self.bound.name}), "
            f"gap {100 * max(0.0, self.gap - 1):.1f} %",
            f"utilisation {100 * shares.utilisation:.1f} %, exposed communication "
            f"{100 * shares.exposed_communication:.1f} %, bubble {100 * shares.bubble:.1f} %",
        )

    @property
    def _suffix(self) -> str:
        return " s" if self.unit == SECONDS else ""

    def span(self, start: float, end: float | None) -> tuple[float, float]:
        """Return the part from `start` to `end`, up to the end of the chart when None.

        Raises ScheduleError where that is no span of time.
        """
        end = self.makespan if end is None else end
        if not 0 <= start < end:
            raise ScheduleError(f"cannot draw from {start:g} to {end:g}; give 0 <= from < to")
        return start, end


SECONDS = "seconds"
COSTS = "units of the op costs (by default a forward is 1)"
