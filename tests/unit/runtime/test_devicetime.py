"""Times of a device that works behind the host's back."""

import pytest
import torch

from disagmoe.errors import TransportError
from disagmoe.runtime.clock import Span, Stopwatch
from disagmoe.runtime.devicetime import DeviceStopwatch, Flights, stopwatch_of
from disagmoe.runtime.moments import DeviceMoments, HostMoments, moments_of
from disagmoe.runtime.trace import Hop
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.ir import TransferKey
from disagmoe.schedule.layout import Channel
from disagmoe.transport.base import Work

KEY = TransferKey(Channel.parse("A0>F0.act"), 0, 1)


class Device:
    """A queue of work; seconds of its clock."""

    def __init__(self) -> None:
        self.queued_s = 0.0
        self.done_s = 0.0
        self.runs = False
        """Whether it goes on while somebody asks for it."""

    def work(self, seconds: float) -> None:
        self.queued_s += seconds

    def catch_up(self) -> None:
        self.done_s = self.queued_s

    def mark(self) -> "Point":
        return Point(self, self.queued_s)


class Point:
    """An event of the device."""

    def __init__(self, device: Device, at_s: float) -> None:
        self._device = device
        self.at_s = at_s

    def query(self) -> bool:
        if self._device.runs:
            self._device.done_s += 0.01
        return self.at_s <= self._device.done_s

    def since(self, earlier: "Point") -> float:
        assert self.query(), "the time of an event that is not passed"
        assert self.at_s >= earlier.at_s, "CUDA promises no negative times"
        return self.at_s - earlier.at_s


def moments(device: Device, *host_s: float) -> DeviceMoments:
    """A clock whose host reads the times given, one at each comparison."""
    readings = iter(host_s)
    return DeviceMoments(device.mark, lambda: None, 0.05, lambda: next(readings))


def only(**seconds: float) -> dict[Kind, float]:
    return dict.fromkeys(Kind, 0.0) | {Kind(kind): value for kind, value in seconds.items()}


def test_seconds_are_those_of_the_device_and_not_of_the_host() -> None:
    device = Device()
    watch = DeviceStopwatch(moments(device, 100.0))
    for kind, seconds in ((Kind.COMPUTE, 3.0), (Kind.RECV_WAIT, 2.0), (Kind.COMPUTE, 1.0)):
        watch.switch(kind)
        device.work(seconds)  # the host goes on at once
    watch.switch(Kind.IDLE)
    device.catch_up()
    assert watch.take() == only(compute=4.0, recv_wait=2.0)


def test_what_the_device_has_not_done_counts_in_the_next_report() -> None:
    device = Device()
    watch = DeviceStopwatch(moments(device, 100.0))
    watch.switch(Kind.COMPUTE)
    device.work(3.0)
    watch.switch(Kind.OPTIMIZER)
    device.catch_up()
    device.work(5.0)
    assert watch.kind is Kind.OPTIMIZER
    assert watch.take() == only(compute=3.0)
    watch.switch(Kind.DATA)
    device.work(0.5)
    device.catch_up()
    assert watch.take() == only(optimizer=5.0, data=0.5)


def test_a_wait_is_idle_until_the_payload_was_sent() -> None:
    device = Device()
    watch = DeviceStopwatch(moments(device, 100.0))
    watch.switch(Kind.RECV_WAIT, awaited=KEY)
    device.work(4.0)
    watch.switch(Kind.COMPUTE)
    device.catch_up()
    watch.settle({KEY: 101.0})  # by the host's clock, which showed 100 at the device's 0
    assert watch.take() == only(idle=1.0, recv_wait=3.0)


def test_spans_of_a_traced_step_agree_with_its_seconds() -> None:
    device = Device()
    watch = DeviceStopwatch(moments(device, 100.0))
    watch.switch(Kind.OPTIMIZER, "before")
    device.work(2.0)
    device.runs = True
    watch.trace(True)
    device.runs = False
    watch.switch(Kind.COMPUTE, "attn_fwd L0 m0")
    device.work(1.0)
    watch.switch(Kind.COMPUTE, "attn_fwd L0 m1")
    device.work(1.5)
    device.runs = True
    assert watch.take() == only(optimizer=2.0, compute=2.5)
    assert watch.take_spans() == (
        Span(Kind.OPTIMIZER, "before", 100.0, 102.0),  # no report has been made since
        Span(Kind.COMPUTE, "attn_fwd L0 m0", 102.0, 103.0),
        Span(Kind.COMPUTE, "attn_fwd L0 m1", 103.0, 104.5),
    )


def test_clocks_are_compared_again_and_time_never_goes_back() -> None:
    device = Device()
    clock = moments(device, 100.0, 104.0)
    watch = DeviceStopwatch(clock)
    watch.switch(Kind.COMPUTE)
    device.work(5.0)
    device.catch_up()
    assert watch.take() == only(compute=5.0)
    clock.calibrate()  # the host's clock says that it was 1 s less
    point = device.mark()
    assert clock.time_s(point) == 105.0
    clock.adopt()
    assert clock.time_s(point) == 104.0
    device.work(0.5)
    device.catch_up()
    assert watch.take() == only()
    device.work(1.0)
    device.catch_up()
    assert watch.take() == only(compute=0.5)


def test_nothing_is_asked_of_the_device_within_one_kind_without_trace() -> None:
    device = Device()
    marks: list[float] = []

    def mark() -> Point:
        marks.append(device.queued_s)
        return device.mark()

    watch = DeviceStopwatch(DeviceMoments(mark, lambda: None, 0.05))
    marks.clear()
    for label in ("a", "b", "c"):
        watch.switch(Kind.COMPUTE, label)
    assert len(marks) == 1


def test_a_device_that_hangs_is_reported() -> None:
    device = Device()
    clock = moments(device, 100.0)
    device.work(1.0)
    with pytest.raises(TransportError, match=r"the device has not done its work within 0\.05 s"):
        clock.time_s(device.mark())


def test_a_failed_transfer_ends_the_wait_for_the_device() -> None:
    device = Device()

    def check() -> None:
        if device.queued_s:
            raise TransportError("channel A0>F0.act: a peer has ended")

    clock = DeviceMoments(device.mark, check, 5.0)
    device.work(1.0)
    with pytest.raises(TransportError, match="a peer has ended"):
        clock.time_s(device.mark())


class Launched:
    """What of Launches is used: transfers with the times of their ends."""

    def flown(self, work: Work) -> object:
        return getattr(work, "times", None)


class Done:
    def __init__(self, times: tuple[Point, Point] | None) -> None:
        self.times = times


def test_transfers_have_the_times_of_their_own_streams() -> None:
    device = Device()
    flights = Flights(Launched(), moments(device, 100.0))  # type: ignore[arg-type]
    flights.add(KEY, True, 64, Done((Point(device, 1.0), Point(device, 2.5))))  # type: ignore[arg-type]
    flights.add(KEY, False, 0, Done(None))  # type: ignore[arg-type]
    device.work(3.0)
    device.catch_up()
    assert flights.land(wanted=True) == [Hop("A0>F0.act", "L0 m1", True, 64, 101.0, 102.5)]
    assert flights.land(wanted=True) == []


def test_transfers_of_a_step_that_is_not_traced_are_forgotten() -> None:
    device = Device()
    flights = Flights(Launched(), moments(device, 100.0))  # type: ignore[arg-type]
    flights.add(KEY, True, 64, Done((Point(device, 1.0), Point(device, 2.5))))  # type: ignore[arg-type]
    assert flights.land(wanted=False) == []
    device.work(3.0)
    device.catch_up()
    assert flights.land(wanted=True) == []


def test_on_a_cpu_the_host_reads_its_own_clock() -> None:
    clock = moments_of(torch.device("cpu"), None, 1.0)
    assert isinstance(clock, HostMoments)
    assert type(stopwatch_of(clock)) is Stopwatch
    first, second = clock.now(), clock.now()
    assert clock.time_s(first) <= clock.time_s(second)
