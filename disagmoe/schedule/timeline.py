"""List scheduling by simulation: when each group computes what, and when each transfer goes.

Every group does one op at a time, every group's way out and way in carry one transfer at a time.
Whenever a group is idle it starts the ready op that the policy ranks first.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from disagmoe.errors import ScheduleError
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import (
    BACKWARD_OPS,
    Compute,
    Op,
    ProgramSpec,
    TransferKey,
    owner,
    payload,
)
from disagmoe.schedule.layout import Channel, Group

Policy = Callable[[Compute], tuple[int, ...]]
"""Rank of a ready op; the smallest goes first."""


@dataclass(frozen=True, slots=True)
class Span:
    """An op on a group from `start` to `end`."""

    compute: Compute
    group: Group
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Hop:
    """A transfer: ready when its producer ends, then on the wire from `start` to `end`."""

    key: TransferKey
    ready: float
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans in order of their start, hops in the one global order that all workers follow."""

    spans: tuple[Span, ...]
    hops: tuple[Hop, ...]

    @property
    def makespan(self) -> float:
        """End of the last op."""
        return max(span.end for span in self.spans)

    def busy(self, group: Group) -> float:
        """Time that `group` computes."""
        return sum(span.end - span.start for span in self.spans if span.group == group)


@dataclass(frozen=True, slots=True)
class Step:
    """An op of a micro-batch's chain, and the transfers that carry its results onward."""

    compute: Compute
    sends: tuple[Channel, ...]
    layer_sent: int


def chain(spec: ProgramSpec, mb: int) -> tuple[Step, ...]:
    """All ops of micro-batch `mb` in order, each with what it sends."""
    return tuple(_chain(spec, mb))


def _chain(spec: ProgramSpec, mb: int) -> Iterator[Step]:
    layout = spec.layout
    direct = layout.direct_residual
    last = layout.layers - 1
    yield Step(Compute(Op.EMBED, None, mb), (), 0)
    for layer in range(layout.layers):
        channels: tuple[Channel, ...] = (layout.dispatch(layer),)
        if direct:
            channels = (*channels, layout.residual(layer))
        yield Step(Compute(Op.ATTN_FWD, layer, mb), channels, layer)
        yield Step(Compute(Op.EXPERTS_FWD, layer, mb), (layout.combine(layer),), layer)
    if not spec.training:
        yield Step(Compute(Op.HEAD_EVAL, None, mb), (), last)
        return
    yield Step(Compute(Op.HEAD, None, mb), _grad_channels(spec, last), last)
    for layer in reversed(range(layout.layers)):
        yield Step(Compute(Op.EXPERTS_BWD, layer, mb), (layout.dispatch_grad(layer),), layer)
        channels = _grad_channels(spec, layer - 1) if layer else ()
        yield Step(Compute(Op.ATTN_BWD, layer, mb), channels, layer - 1)
    yield Step(Compute(Op.EMBED_BWD, None, mb), (), 0)


def _grad_channels(spec: ProgramSpec, layer: int) -> tuple[Channel, ...]:
    layout = spec.layout
    if layout.direct_residual:
        return (layout.combine_grad(layer), layout.residual_grad(layer))
    return (layout.combine_grad(layer),)


def simulate(spec: ProgramSpec, costs: OpCosts, policy: Policy, in_flight: int) -> Timeline:
    """Schedule all micro-batches. Raises ScheduleError for fewer than one in flight."""
    if in_flight < 1:
        raise ScheduleError(f"{in_flight} micro-batches in flight; use 1 or more")
    return _Simulation(spec, costs, policy).run(in_flight)


class _Simulation:
    """The event loop; an event is an op that ends or an input that arrives."""

    def __init__(self, spec: ProgramSpec, costs: OpCosts, policy: Policy) -> None:
        self._spec = spec
        self._costs = costs
        self._policy = policy
        groups = spec.layout.all_groups
        self._ready: dict[Group, list[tuple[tuple[int, ...], Compute]]] = {g: [] for g in groups}
        self._idle_at = dict.fromkeys(groups, 0.0)
        self._out_free = dict.fromkeys(groups, 0.0)
        self._in_free = dict.fromkeys(groups, 0.0)
        self._spans: list[Span] = []
        self._hops: list[Hop] = []
        self._now = 0.0
        # (time, sequence, whether the op ends, op): the sequence makes equal times deterministic
        self._events: list[tuple[float, int, bool, Compute]] = []
        self._sequence = 0
        self._admitted = 0
        chains = [chain(spec, mb) for mb in range(spec.micro_batches)]
        self._first = [steps[0].compute for steps in chains]
        self._steps: dict[Compute, Step] = {}
        self._following: dict[Compute, Compute] = {}
        self._missing: dict[Compute, int] = {}
        for steps in chains:
            sends = 1  # the first op waits for its admission
            for step in steps:
                self._steps[step.compute] = step
                # a backward also waits for the same op of the micro-batch before it, so that
                # gradients accumulate in ascending order
                after = step.compute.op in BACKWARD_OPS and step.compute.mb > 0
                self._missing[step.compute] = max(1, sends) + after
                sends = len(step.sends)
            for step, following in itertools.pairwise(steps):
                self._following[step.compute] = following.compute

    def run(self, in_flight: int) -> Timeline:
        for _ in range(in_flight):
            self._admit()
        self._start_idle_groups()
        while self._events:
            self._now = self._events[0][0]
            while self._events and self._events[0][0] == self._now:
                _, _, ends, compute = heapq.heappop(self._events)
                if ends:
                    self._finish(compute)
                else:
                    self._satisfy(compute)
            self._start_idle_groups()
        # equal times keep the order in which the hops were booked
        hops = sorted(self._hops, key=lambda hop: hop.ready)
        return Timeline(tuple(self._spans), tuple(hops))

    def _admit(self) -> None:
        if self._admitted < len(self._first):
            self._satisfy(self._first[self._admitted])
            self._admitted += 1

    def _satisfy(self, compute: Compute) -> None:
        self._missing[compute] -= 1
        if self._missing[compute] == 0:
            group = owner(compute, self._spec.layout)
            heapq.heappush(self._ready[group], (self._policy(compute), compute))

    def _at(self, time: float, *, ends: bool, compute: Compute) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (time, self._sequence, ends, compute))

    def _start_idle_groups(self) -> None:
        for group, ready in self._ready.items():
            if ready and self._idle_at[group] <= self._now:
                _, compute = heapq.heappop(ready)
                end = self._now + self._costs.compute(compute.op)
                self._idle_at[group] = end
                self._spans.append(Span(compute, group, self._now, end))
                self._at(end, ends=True, compute=compute)

    def _finish(self, compute: Compute) -> None:
        step, following = self._steps[compute], self._following.get(compute)
        if following is None:
            self._admit()
        elif not step.sends:
            self._satisfy(following)
        else:
            for channel in step.sends:
                arrival = self._send(TransferKey(channel, step.layer_sent, compute.mb))
                self._at(arrival, ends=False, compute=following)
        if compute.op in BACKWARD_OPS and compute.mb + 1 < self._spec.micro_batches:
            self._satisfy(Compute(compute.op, compute.layer, compute.mb + 1))

    def _send(self, key: TransferKey) -> float:
        source, target = key.channel.source, key.channel.target
        start = max(self._now, self._out_free[source], self._in_free[target])
        end = start + self._costs.transfer(payload(key.channel))
        self._out_free[source] = end
        self._in_free[target] = end
        self._hops.append(Hop(key, self._now, start, end))
        return end
