"""Seconds by kind, and times of transfers, of a worker whose device works behind the host's back.

Both are read from events after the device has passed them, so that measuring stops nobody: at the
end of a step, where the host waits for the device anyway, all of the step's program is past. What
the device still does then, the update, counts in the next report; a traced step waits for it.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from disagmoe.runtime.clock import Stopwatch
from disagmoe.runtime.inbox import moved
from disagmoe.runtime.moments import HostMoments, Moment, Moments
from disagmoe.runtime.trace import Hop
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.ir import TransferKey
from disagmoe.transport.base import Launches, Work


@dataclass(frozen=True, slots=True)
class _Switch:
    """A switch that the device has not come to."""

    moment: Moment
    kind: Kind
    label: str
    awaited: TransferKey | None


class DeviceStopwatch(Stopwatch):
    """A stopwatch of what the compute stream is at: a wait for a payload lasts as long as the
    stream waits for it, however early the host has come to it.

    Switches are played back to the stopwatch underneath with the times of their events.
    """

    def __init__(self, moments: Moments) -> None:
        self._moments = moments
        self._at_s = moments.time_s(moments.now())
        self._pending: deque[_Switch] = deque()
        self._newest = _Switch(self._at_s, Kind.IDLE, "", None)
        super().__init__(lambda: self._at_s)

    @property
    def kind(self) -> Kind:
        """What the host is at, which is ahead of the device."""
        return self._newest.kind

    def trace(self, on: bool) -> None:
        """See Stopwatch.trace; waits for the device, so that all spans are on one side of it."""
        if on is not self.traces:
            self._play(to_the_end=True)
        super().trace(on)

    def switch(self, kind: Kind, label: str = "", awaited: TransferKey | None = None) -> None:
        """See Stopwatch.switch."""
        newest = self._newest
        same = kind is newest.kind and awaited == newest.awaited
        if same and (not self.traces or label == newest.label):
            return
        self._newest = _Switch(self._moments.now(), kind, label, awaited)
        self._pending.append(self._newest)

    def settle(self, sent_s: Mapping[TransferKey, float]) -> None:
        """See Stopwatch.settle; all waits are past, as something after them has been read."""
        self._play(to_the_end=False)
        super().settle(sent_s)

    def take(self) -> dict[Kind, float]:
        """See Stopwatch.take, up to where the device has come."""
        newest = self._newest
        mark = _Switch(self._moments.now(), newest.kind, newest.label, newest.awaited)
        self._pending.append(mark)
        self._play(to_the_end=self.traces)
        return super().take()

    def _play(self, *, to_the_end: bool) -> None:
        while self._pending:
            switch = self._pending[0]
            if not to_the_end and not self._moments.passed(switch.moment):
                return
            self._pending.popleft()
            # two comparisons of clocks may differ by more than a short span
            self._at_s = max(self._at_s, self._moments.time_s(switch.moment))
            super().switch(switch.kind, switch.label, switch.awaited)


def stopwatch_of(moments: Moments) -> Stopwatch:
    """Return the stopwatch that goes with a worker's clock."""
    return Stopwatch() if isinstance(moments, HostMoments) else DeviceStopwatch(moments)


@dataclass(frozen=True, slots=True)
class _Flight:
    key: TransferKey
    sends: bool
    nbytes: int
    began: Moment
    ended: Moment


class Flights:
    """The transfers of one program, until their times are asked for."""

    def __init__(self, launches: Launches, moments: Moments) -> None:
        self._launches = launches
        self._moments = moments
        self._flights: list[_Flight] = []

    def add(self, key: TransferKey, sends: bool, nbytes: int, work: Work) -> None:
        """Remember a transfer that the program has waited for, but not its tensors; nothing of one
        without a message."""
        times = self._launches.flown(work)
        if times is not None:
            self._flights.append(_Flight(key, sends, nbytes, *times))

    def land(self, *, wanted: bool) -> list[Hop]:
        """Return when each was under way, by the device's clock, if that is `wanted`; forget
        them."""
        flights, self._flights = self._flights, []
        time_s = self._moments.time_s
        return [
            Hop(
                channel=str(flight.key.channel),
                label=moved(flight.key),
                sends=flight.sends,
                nbytes=flight.nbytes,
                start_s=time_s(flight.began),
                end_s=time_s(flight.ended),
            )
            for flight in (flights if wanted else ())
        ]
