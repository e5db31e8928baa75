"""The event loop: every worker goes through its program, transfers go their ways.

A worker computes one op after the other, in program order, and waits where its program waits. Its
network cards (out, in) and its NVLink carry one payload at a time, first come first served. A
payload takes its ways one after the other, each from when the way before has begun and the way is
free; it has come `latency` after the last of them is done. Receivers take what comes at any time,
as the runtime's do.

Workers run ahead until they wait for something that is not known yet; only what happens on shared
ways goes through the queue of events, in the order of time and then of creation. That is exact: all
that a worker does depends on arrivals, and an arrival depends on what was put on its ways before.
"""

import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from disagmoe.simulator.load import Load, Traffic
from disagmoe.simulator.lowering import Lowered

_UNKNOWN = -1.0


@dataclass(slots=True)
class Way:
    """A resource that carries one payload at a time, and when it did."""

    free: float = 0.0
    starts: "array[float]" = field(default_factory=lambda: array("d"))
    ends: "array[float]" = field(default_factory=lambda: array("d"))

    def book(self, time: float, duration: float) -> tuple[float, float]:
        """Take the way from `time` on, as soon as it is free; return when it begins and ends."""
        start = self.free if self.free > time else time
        end = start + duration
        if duration:
            self.free = end
            self.starts.append(start)
            self.ends.append(end)
        return start, end


@dataclass(slots=True)
class Actor:
    """A worker, or all workers of a group that do the same."""

    group: int
    rank: int
    program: Sequence[tuple[int, int]]
    near: Way = field(default_factory=Way)
    out: Way = field(default_factory=Way)
    into: Way = field(default_factory=Way)
    time: float = 0.0
    at: int = 0
    last_op: int = -1
    since: float = 0.0
    """End of the last op."""
    awaited: list[tuple[float, float]] = field(default_factory=list)
    """When what was waited for since then had been handed over, and had come."""
    came_last: int = -1
    """The transfer whose wait ended last since then; -1 where nothing was waited for."""
    waiting: int = -1
    """The transfer that it waits for; -1 while it runs."""
    exposed: float = 0.0
    """Time with nothing to do but to wait for the network."""
    waits: "array[float]" = field(default_factory=lambda: array("d"))
    """Begins and ends of it, alternately."""


class Engine:
    """Runs lowered programs once. Records are by op or transfer and rank: index number * width +
    rank, with `width` the largest number of actors of a group."""

    def __init__(self, lowered: Lowered, load: Load) -> None:
        self.lowered = lowered
        self.load = load
        spec = lowered.spec
        self.width = max(len(ranks) for ranks in load.ranks)
        self.actors = [
            [Actor(group, rank, program) for rank in ranks]
            for group, (ranks, program) in enumerate(zip(load.ranks, lowered.programs, strict=True))
        ]
        ops = spec.micro_batches * len(lowered.chain) * self.width
        transfers = spec.micro_batches * len(lowered.wires) * self.width
        self.op_start = array("d", [_UNKNOWN]) * ops
        self.op_end = array("d", [_UNKNOWN]) * ops
        self.op_before = array("q", [-1]) * ops
        """The op before on the same actor."""
        self.op_cause = array("q", [-1]) * ops
        """The transfer that it began with, where it had waited for one."""
        self.posted = array("d", [_UNKNOWN]) * transfers
        """By sender."""
        self.posted_after = array("q", [-1]) * transfers
        """By sender: its op before."""
        self.gone = array("d", [_UNKNOWN]) * transfers
        """By sender: when all has left."""
        self.ready = array("d", [_UNKNOWN]) * transfers
        """By receiver: when the last sender had posted it."""
        self.landing = array("d", [_UNKNOWN]) * transfers
        """By receiver: when the first of it reached its way in."""
        self.arrival = array("d", [_UNKNOWN]) * transfers
        """By receiver."""
        self.last_sender = array("q", [-1]) * transfers
        """By receiver: the rank whose part came last."""
        missing = array("q")
        for traffic in load.traffic:
            missing.extend([1 if traffic.twins else len(traffic.parts)] * self.width)
        self._missing = missing * spec.micro_batches
        self._events: list[tuple[float, int, int, int, int, float]] = []
        self._sequence = 0

    def run(self) -> None:
        """Run all programs to their ends."""
        for actors in self.actors:
            for actor in actors:
                self._advance(actor)
        events = self._events
        while events:
            time, _, stage, transfer, who, done = heapq.heappop(events)
            if stage == 0:
                self._leave(time, transfer, who)
            elif stage == 1:
                self._land(time, transfer, who, done)
            else:
                sender, receiver = divmod(who, self.width)
                self._pass_on(time, transfer, sender, receiver, done)
        for actors in self.actors:
            for actor in actors:
                assert actor.at == len(actor.program), f"{actor.group}.{actor.rank} stands still"

    def _push(self, time: float, stage: int, transfer: int, who: int, done: float) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (time, self._sequence, stage, transfer, who, done))

    def _advance(self, actor: Actor) -> None:
        """Go on until something is not known yet."""
        program, width, rank = actor.program, self.width, actor.rank
        at, time = actor.at, actor.time
        compute = self.load.compute
        length = len(self.lowered.chain)
        end = len(program)
        while at < end:
            code, number = program[at]
            index = number * width + rank
            if code == 0:  # COMPUTE
                if actor.awaited:
                    self._expose(actor, time)
                self.op_start[index] = time
                self.op_before[index] = actor.last_op
                self.op_cause[index] = actor.came_last
                time += compute[number % length][rank]
                self.op_end[index] = time
                actor.last_op = number
                actor.since = time
                actor.came_last = -1
            elif code == 1:  # POST
                self.posted[index] = time
                self.posted_after[index] = actor.last_op
                self._push(time, 0, number, rank, 0.0)
            elif code == 2:  # TAKE
                if self._missing[index]:
                    actor.waiting = number
                    break
                arrival = self.arrival[index]
                if arrival > actor.since:
                    actor.awaited.append((self.ready[index], arrival))
                if arrival > time:
                    time = arrival
                    actor.came_last = number
            else:  # SENT
                if self.gone[index] == _UNKNOWN:
                    actor.waiting = number
                    break
                time = self._sent(actor, time, self.gone[index])
            at += 1
        actor.at, actor.time = at, time

    def _sent(self, actor: Actor, time: float, gone: float) -> float:
        """Wait until a payload has left; return when that is."""
        if gone <= time:
            return time
        actor.awaited.append((time, gone))
        return gone

    def _expose(self, actor: Actor, until: float) -> None:
        """Count when the actor waited for the network since its last op: something had been handed
        over and had not come. Waits may overlap; each moment counts once."""
        free = actor.since
        for ready, arrival in sorted(actor.awaited):
            start = ready if ready > free else free
            end = arrival if arrival < until else until
            if start < end:
                actor.exposed += end - start
                actor.waits.append(start)
                actor.waits.append(end)
                free = end
        actor.awaited.clear()

    def _leave(self, time: float, transfer: int, rank: int) -> None:
        """A sender hands its part over."""
        traffic = self._traffic(transfer)
        sender = self.actors[traffic.source][rank]
        start, near_end = sender.near.book(time, traffic.near_source[rank])
        start, out_end = sender.out.book(start, traffic.out[rank])
        done = near_end if near_end > out_end else out_end
        index = transfer * self.width + rank
        self.gone[index] = done
        if start > time:
            self._push(start, 1, transfer, rank, done)
        else:
            self._land(time, transfer, rank, done)
        if sender.waiting == transfer and traffic.source != traffic.target:
            self._resume(sender)

    def _land(self, time: float, transfer: int, rank: int, done: float) -> None:
        """A sender's part reaches its receivers' ways in; at the sender it is done with `done`."""
        traffic = self._traffic(transfer)
        receivers = self.actors[traffic.target]
        targets = (rank,) if traffic.twins else range(len(receivers))
        part = traffic.parts[rank]
        for target in targets:
            start, end = receivers[target].into.book(time, traffic.into[target] * part)
            if done > end:
                end = done
            index = transfer * self.width + target
            landing = self.landing[index]
            if landing == _UNKNOWN or start < landing:
                self.landing[index] = start
            if traffic.near_target[target] == 0.0:
                self._arrive(transfer, rank, target, end)
            elif start > time:
                self._push(start, 2, transfer, rank * self.width + target, end)
            else:
                self._pass_on(time, transfer, rank, target, end)

    def _pass_on(self, time: float, transfer: int, rank: int, target: int, done: float) -> None:
        """A sender's part goes on by the receiver's NVLink."""
        traffic = self._traffic(transfer)
        receiver = self.actors[traffic.target][target]
        duration = traffic.near_target[target] * traffic.parts[rank]
        _, end = receiver.near.book(time, duration)
        self._arrive(transfer, rank, target, done if done > end else end)

    def _arrive(self, transfer: int, rank: int, target: int, done: float) -> None:
        traffic = self._traffic(transfer)
        index = transfer * self.width + target
        arrival = done + traffic.latency
        if arrival > self.arrival[index]:
            self.arrival[index] = arrival
            self.last_sender[index] = rank
        posted = self.posted[transfer * self.width + rank]
        if posted > self.ready[index]:
            self.ready[index] = posted
        self._missing[index] -= 1
        if self._missing[index] == 0:
            receiver = self.actors[traffic.target][target]
            if receiver.waiting == transfer:
                self._resume(receiver)

    def _resume(self, actor: Actor) -> None:
        actor.waiting = -1
        self._advance(actor)

    def _traffic(self, transfer: int) -> Traffic:
        return self.load.traffic[transfer % len(self.load.traffic)]
