"""Points in a worker's time, and when they were.

On the host a point is a reading of its clock. Where a device works behind the host's back that only
says when something was queued; a point is then an event in the compute stream, whose time is known
once the device has come to it. All times are seconds of this worker's `time.perf_counter`.
"""

import time
from collections.abc import Callable
from typing import Protocol

import torch

from disagmoe.errors import TransportError
from disagmoe.transport.base import Launches
from disagmoe.transport.streams import CudaStreams, Event

Moment = float | Event

_SLEEP_S = 5e-5
"""Between looks at an event that does not come at once."""
_SPINS = 200
"""Looks without a pause, so that an idle device's answer is read as soon as it is there."""


class Moments(Protocol):
    """One worker's clock."""

    def now(self) -> Moment:
        """The point after what has been done, or queued, so far."""

    def passed(self, moment: Moment) -> bool:
        """Whether it is known when `moment` was."""

    def time_s(self, moment: Moment) -> float:
        """When it was; waits for it."""

    def calibrate(self) -> None:
        """Compare clocks; where the device has nothing left to do, so that nothing waits."""

    def adopt(self) -> None:
        """Use the latest comparison, for moments after it."""


class HostMoments:
    """The host does everything itself."""

    def now(self) -> Moment:
        """See Moments.now."""
        return time.perf_counter()

    def passed(self, moment: Moment) -> bool:
        """See Moments.passed."""
        return True

    def time_s(self, moment: Moment) -> float:
        """See Moments.time_s."""
        assert isinstance(moment, float)
        return moment

    def calibrate(self) -> None:
        """See Moments.calibrate: there is one clock."""

    def adopt(self) -> None:
        """See Moments.adopt."""


class DeviceMoments:
    """A device that is given work ahead of time.

    Its clock runs at its own rate, so it is compared with the host's again in every step.
    """

    def __init__(
        self,
        mark: Callable[[], Event],
        check: Callable[[], None],
        timeout_s: float,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`mark` returns the point after what the compute stream has been given; `check` raises
        when that cannot come any more; it must come within `timeout_s`."""
        self._mark = mark
        self._check = check
        self._timeout_s = timeout_s
        self._now = now
        self._next = self._compared()
        self._base, self._base_s = self._next

    def now(self) -> Moment:
        """See Moments.now."""
        return self._mark()

    def passed(self, moment: Moment) -> bool:
        """See Moments.passed."""
        return isinstance(moment, float) or moment.query()

    def time_s(self, moment: Moment) -> float:
        """See Moments.time_s. Raises TransportError when the device does not come to it."""
        if isinstance(moment, float):
            return moment
        self._wait(moment)
        return self._base_s + moment.since(self._base)

    def calibrate(self) -> None:
        """See Moments.calibrate."""
        self._next = self._compared()

    def adopt(self) -> None:
        """See Moments.adopt. Kept apart from `calibrate`, so that an event is never compared with
        a later one, for which CUDA promises no time."""
        self._base, self._base_s = self._next

    def _compared(self) -> tuple[Event, float]:
        event = self._mark()
        self._wait(event)
        return event, self._now()

    def _wait(self, event: Event) -> None:
        for _ in range(_SPINS):
            if event.query():
                return
        deadline_s = time.monotonic() + self._timeout_s
        while not event.query():
            self._check()
            if time.monotonic() > deadline_s:
                raise TransportError(
                    f"the device has not done its work within {self._timeout_s:g} s; a kernel or a "
                    "transfer hangs"
                )
            time.sleep(_SLEEP_S)


def moments_of(device: torch.device, launches: Launches | None, timeout_s: float) -> Moments:
    """Return the clock of a worker that computes on `device`; `launches` where transfers go on
    behind the host's back, see Transport.launches."""
    if launches is not None:
        return DeviceMoments(launches.mark, launches.check, timeout_s)
    if device.type == "cuda":
        return DeviceMoments(CudaStreams(device).now, lambda: None, timeout_s)
    return HostMoments()
