"""List scheduling by simulation: when each group computes what, and when each transfer goes.

Every group of workers does one op at a time; whenever it is idle it starts the ready op that the
policy ranks first. Its way out and its way in carry one transfer at a time, first come first
served, and so do the links inside its hosts, beside them; a transfer passes both at once, unless
the way in is taken: then it is kept in between, as in a switch, and holds up nothing that goes
elsewhere.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

from disagmoe.errors import ScheduleError
from disagmoe.schedule.chain import Place, Wire, places
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import Compute, ProgramSpec, TransferKey
from disagmoe.schedule.layout import Group

Policy = Callable[[Compute], tuple[float, ...]]
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
    """A transfer: ready when its producer ends; on the sender's way out from `start` for `time`, on
    the receiver's way in from `landing` to `end`, for `time` too."""

    key: TransferKey
    ready: float
    start: float
    landing: float
    time: float

    @property
    def end(self) -> float:
        """When all of it is there."""
        return self.landing + self.time


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans in order of their start, hops in the one global order that all workers follow."""

    spans: tuple[Span, ...]
    hops: tuple[Hop, ...]
    in_flight: int
    """How many micro-batches were allowed on the ring at once."""
    exposed_exchanges: bool = False
    """Whether a group does nothing else during an all-to-all of its own."""

    @property
    def makespan(self) -> float:
        """End of the last op."""
        return max(span.end for span in self.spans)

    def busy(self, group: Group) -> float:
        """Time that `group` computes."""
        return sum(span.end - span.start for span in self.spans if span.group == group)


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
    chain = places(spec, costs)
    simulation = Simulation(spec, chain, policy, in_flight, exposed_exchanges=exposed_exchanges)
    simulation.run()
    return simulation.timeline()


class Simulation:
    """The event loop; an event is an op or a transfer that ends.

    An op is a number: its micro-batch times the length of the chain, plus its place in the chain.
    """

    def __init__(
        self,
        spec: ProgramSpec,
        chain: tuple[Place, ...],
        policy: Policy,
        in_flight: int,
        *,
        exposed_exchanges: bool = False,
    ) -> None:
        """`chain` is that of `spec`; for the rest see `simulate`."""
        if in_flight < 1:
            raise ScheduleError(f"{in_flight} micro-batches in flight; use 1 or more")
        if spec.gathers_step and in_flight < spec.micro_batches:
            raise ScheduleError(
                f"expert counts of a whole step need all {spec.micro_batches} micro-batches in "
                f"flight, and {in_flight} may be"
            )
        self._groups = spec.layout.all_groups
        self._places = chain
        self._length = len(self._places)
        self._micro_batches = spec.micro_batches
        self._in_flight = in_flight
        self._exposed_exchanges = exposed_exchanges
        self._policy = policy
        # (policy's rank, sequence, op): the sequence decides between equal ranks
        self._ready: list[list[tuple[tuple[float, ...], int, int]]] = [[] for _ in self._groups]
        # ops, and exposed all-to-alls, that keep a group from starting another op
        self._occupied = [0] * len(self._groups)
        # groups that may have something to start since they were last looked at
        self._changed: set[int] = set()
        ways = 2 * len(self._groups)  # to the network, and inside hosts
        self._out_free = [0.0] * ways
        self._in_free = [0.0] * ways
        self._spans: list[tuple[int, float]] = []  # op, start
        self._parcels: list[_Parcel] = []
        self._now = 0.0
        # (time, sequence, op that ends or parcel that leaves or arrives): the sequence makes equal
        # times deterministic
        self._events: list[tuple[float, int, int | _Parcel]] = []
        self._sequence = 0
        self._admitted = 0
        self._left = [self._length] * spec.micro_batches  # ops of each micro-batch
        first = [place.inputs for place in self._places]
        first[0] += 1  # its admission
        later = [n + place.sums for n, place in zip(first, self._places, strict=True)]
        self._missing = first + later * (spec.micro_batches - 1)

    def run(self, below: float = math.inf) -> bool:
        """Run to the end, once. Return whether it comes before `below`; stop where it does not."""
        for _ in range(self._in_flight):
            self._admit()
        self._start()
        events = self._events
        while events:
            self._now = events[0][0]
            if self._now >= below:
                return False
            while events and events[0][0] == self._now:
                event = heapq.heappop(events)[2]
                if isinstance(event, int):
                    self._finish(event)
                elif event.landing is None:
                    self._leave(event)
                else:
                    self._arrive(event)
            self._start()
        return True

    def _at(self, time: float, event: "int | _Parcel") -> None:
        self._sequence += 1
        heapq.heappush(self._events, (time, self._sequence, event))

    def _admit(self) -> None:
        if self._admitted < self._micro_batches:
            self._satisfy(self._admitted * self._length)
            self._admitted += 1

    def _satisfy(self, op: int) -> None:
        self._missing[op] -= 1
        if self._missing[op] == 0:
            place = self._places[op % self._length]
            rank = self._policy(_compute(place, op // self._length))
            self._sequence += 1
            heapq.heappush(self._ready[place.group], (rank, self._sequence, op))
            self._changed.add(place.group)

    def _start(self) -> None:
        """Start an op on every group that is idle."""
        for group in sorted(self._changed):
            ready = self._ready[group]
            if ready and not self._occupied[group]:
                op = heapq.heappop(ready)[2]
                self._occupied[group] += 1
                self._spans.append((op, self._now))
                self._at(self._now + self._places[op % self._length].time, op)
        self._changed.clear()

    def _finish(self, op: int) -> None:
        mb, at = divmod(op, self._length)
        place = self._places[at]
        self._occupied[place.group] -= 1
        self._changed.add(place.group)
        for wire in place.wires:
            parcel = _Parcel(wire, mb, self._now, max(self._now, self._out_free[wire.out]))
            self._parcels.append(parcel)
            self._out_free[wire.out] = parcel.start + wire.time
            self._occupied[wire.source] += self._exposes(wire)
            self._at(parcel.start, parcel)
        if place.following is not None:
            self._satisfy(op - at + place.following)
        if place.gathering is not None:
            for other in range(self._micro_batches):
                self._satisfy(other * self._length + place.gathering)
        self._left[mb] -= 1
        if self._left[mb] == 0:
            self._admit()
        if place.sums and mb + 1 < self._micro_batches:
            self._satisfy(op + self._length)

    def _leave(self, parcel: "_Parcel") -> None:
        wire = parcel.wire
        parcel.landing = max(self._now, self._in_free[wire.into])
        self._in_free[wire.into] = parcel.landing + wire.time
        self._at(parcel.landing + wire.time, parcel)

    def _arrive(self, parcel: "_Parcel") -> None:
        wire = parcel.wire
        self._occupied[wire.source] -= self._exposes(wire)
        self._changed.add(wire.source)
        self._satisfy(parcel.mb * self._length + wire.reader)

    def _exposes(self, wire: Wire) -> bool:
        """Whether `wire` keeps its group from computing."""
        return self._exposed_exchanges and wire.source == wire.target

    @property
    def makespan(self) -> float:
        """End of the last op that has been run."""
        return max(start + self._places[op % self._length].time for op, start in self._spans)

    def timeline(self) -> Timeline:
        """What has been run."""
        spans = []
        for op, start in self._spans:
            place = self._places[op % self._length]
            compute = _compute(place, op // self._length)
            spans.append(Span(compute, self._groups[place.group], start, start + place.time))
        # booked when they became ready, so they are in that order
        hops = tuple(parcel.hop() for parcel in self._parcels)
        return Timeline(tuple(spans), hops, self._in_flight, self._exposed_exchanges)


@dataclass(slots=True)
class _Parcel:
    """A transfer of one micro-batch from the moment it is ready."""

    wire: Wire
    mb: int
    ready: float
    start: float
    landing: float | None = None

    def hop(self) -> Hop:
        assert self.landing is not None
        key = self.wire.send.key
        key = TransferKey(key.channel, key.layer, self.mb)
        return Hop(key, self.ready, self.start, self.landing, self.wire.time)


def _compute(place: Place, mb: int) -> Compute:
    return Compute(place.compute.op, place.compute.layer, mb)
