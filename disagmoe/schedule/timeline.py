"""List scheduling by simulation: when each group computes what, and when each transfer goes.

Every group of workers does one op at a time, its way out and its way in carry one transfer at a
time. Whenever a group is idle it starts the ready op that the policy ranks first.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from disagmoe.errors import ScheduleError
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import (
    SUMMING_OPS,
    Compute,
    Op,
    ProgramSpec,
    TransferKey,
    owner,
    payload,
)
from disagmoe.schedule.layout import Group

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
class Send:
    """A transfer, and the op at its other end that reads what it carries."""

    key: TransferKey
    reader: Compute


@dataclass(frozen=True, slots=True)
class Step:
    """An op of a micro-batch's chain, and the transfers that carry its results onward. The next op
    of the chain runs on the same group when there are none."""

    compute: Compute
    sends: tuple[Send, ...] = ()


def chain(spec: ProgramSpec, mb: int) -> tuple[Step, ...]:
    """All ops of micro-batch `mb` in order, each with what it sends."""
    return tuple(_chain(spec, mb))


def _chain(spec: ProgramSpec, mb: int) -> Iterator[Step]:
    layout = spec.layout
    layers = layout.layers
    head = Compute(Op.HEAD if spec.training else Op.HEAD_EVAL, None, mb)
    yield Step(Compute(Op.EMBED, None, mb))
    for layer in range(layers):
        experts = Compute(Op.EXPERTS_FWD, layer, mb)
        following = Compute(Op.ATTN_FWD, layer + 1, mb) if layer + 1 < layers else head
        sends = [Send(TransferKey(layout.dispatch(layer), layer, mb), experts)]
        if layout.direct_residual:
            sends.append(Send(TransferKey(layout.residual(layer), layer, mb), following))
        yield Step(Compute(Op.ATTN_FWD, layer, mb), tuple(sends))
        yield Step(experts, (Send(TransferKey(layout.combine(layer), layer, mb), following),))
    if not spec.training:
        yield Step(head)
        return
    yield Step(head, _gradients(spec, layers - 1, mb))
    for layer in reversed(range(layers)):
        attention = Compute(Op.ATTN_BWD, layer, mb)
        rows = Send(TransferKey(layout.dispatch_grad(layer), layer, mb), attention)
        yield Step(Compute(Op.EXPERTS_BWD, layer, mb), (rows,))
        yield Step(attention, _gradients(spec, layer - 1, mb) if layer else ())
    yield Step(Compute(Op.EMBED_BWD, None, mb))


def _gradients(spec: ProgramSpec, layer: int, mb: int) -> tuple[Send, ...]:
    """What the head or the attention after `layer` sends back into it."""
    layout = spec.layout
    outputs = TransferKey(layout.combine_grad(layer), layer, mb)
    sends = (Send(outputs, Compute(Op.EXPERTS_BWD, layer, mb)),)
    if not layout.direct_residual:
        return sends
    residual = TransferKey(layout.residual_grad(layer), layer, mb)
    return (*sends, Send(residual, Compute(Op.ATTN_BWD, layer, mb)))


def simulate(
    spec: ProgramSpec,
    costs: OpCosts,
    policy: Policy,
    in_flight: int,
    *,
    exposed_exchanges: bool = False,
) -> Timeline:
    """Schedule all micro-batches. With `exposed_exchanges` a group does nothing else during an
    all-to-all of its own. Raises ScheduleError for fewer than one in flight."""
    if in_flight < 1:
        raise ScheduleError(f"{in_flight} micro-batches in flight; use 1 or more")
    return _Simulation(spec, costs, policy, exposed_exchanges).run(in_flight)


class _Simulation:
    """The event loop; an event is an op that ends or an input that arrives."""

    def __init__(
        self, spec: ProgramSpec, costs: OpCosts, policy: Policy, exposed_exchanges: bool
    ) -> None:
        self._spec = spec
        self._exposed_exchanges = exposed_exchanges
        self._costs = costs
        self._policy = policy
        groups = spec.layout.all_groups
        # (policy's rank, sequence, op): the sequence decides between equal ranks
        self._ready: dict[Group, list[tuple[tuple[int, ...], int, Compute]]] = {
            group: [] for group in groups
        }
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
        self._steps: dict[Compute, Step] = {}
        self._following: dict[Compute, Compute] = {}
        self._missing: Counter[Compute] = Counter()
        self._first: list[Compute] = []
        for mb in range(spec.micro_batches):
            self._add_chain(chain(spec, mb))

    def _add_chain(self, steps: tuple[Step, ...]) -> None:
        self._first.append(steps[0].compute)
        self._missing[steps[0].compute] = 1  # its admission
        for step in steps:
            self._steps[step.compute] = step
            for send in step.sends:
                self._missing[send.reader] += 1
            if step.compute.op in SUMMING_OPS and step.compute.mb > 0:
                self._missing[step.compute] += 1  # the same op of the micro-batch before it
        for step, following in itertools.pairwise(steps):
            if not step.sends:
                self._following[step.compute] = following.compute
                self._missing[following.compute] += 1

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

    def _host(self, role: Group) -> Group:
        return self._spec.layout.host(role)

    def _satisfy(self, compute: Compute) -> None:
        self._missing[compute] -= 1
        if self._missing[compute] == 0:
            group = self._host(owner(compute, self._spec.layout))
            self._sequence += 1
            heapq.heappush(self._ready[group], (self._policy(compute), self._sequence, compute))

    def _at(self, time: float, *, ends: bool, compute: Compute) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (time, self._sequence, ends, compute))

    def _start_idle_groups(self) -> None:
        for group, ready in self._ready.items():
            if ready and self._idle_at[group] <= self._now:
                _, _, compute = heapq.heappop(ready)
                end = self._now + self._costs.compute(compute.op)
                self._idle_at[group] = end
                self._spans.append(Span(compute, group, self._now, end))
                self._at(end, ends=True, compute=compute)

    def _finish(self, compute: Compute) -> None:
        step = self._steps[compute]
        for send in step.sends:
            self._at(self._send(send.key), ends=False, compute=send.reader)
        if not step.sends and compute in self._following:
            self._satisfy(self._following[compute])
        elif not step.sends:
            self._admit()
        if compute.op in SUMMING_OPS and compute.mb + 1 < self._spec.micro_batches:
            self._satisfy(Compute(compute.op, compute.layer, compute.mb + 1))

    def _send(self, key: TransferKey) -> float:
        source, target = self._host(key.channel.source), self._host(key.channel.target)
        start = max(self._now, self._out_free[source], self._in_free[target])
        end = start + self._costs.transfer(payload(key.channel))
        self._out_free[source] = end
        self._in_free[target] = end
        self._hops.append(Hop(key, self._now, start, end))
        if self._exposed_exchanges and source == target:
            self._idle_at[source] = max(self._idle_at[source], end)
        return end
