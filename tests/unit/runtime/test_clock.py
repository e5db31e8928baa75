import pytest

from disagmoe.runtime.clock import Span, Stopwatch, seconds_by_kind
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.ir import TransferKey
from disagmoe.schedule.layout import Channel


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_moment_is_charged_to_what_was_switched_to_last() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    for kind, until in ((Kind.DATA, 101.0), (Kind.COMPUTE, 103.0), (Kind.SEND, 103.5)):
        clock.now = until
        watch.switch(kind)
    clock.now = 110.0
    seconds = watch.take()
    assert seconds == dict.fromkeys(Kind, 0.0) | {
        Kind.IDLE: 1.0,
        Kind.DATA: 2.0,
        Kind.COMPUTE: 0.5,
        Kind.SEND: 6.5,
    }
    assert sum(seconds.values()) == 10.0
    clock.now = 111.0
    assert watch.take() == dict.fromkeys(Kind, 0.0) | {Kind.SEND: 1.0}


def test_spans_agree_with_seconds_exactly() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    watch.trace(True)
    times = [0.1, 0.7, 0.2, 1.3, 0.4]
    kinds = [Kind.COMPUTE, Kind.COMPUTE, Kind.RECV_WAIT, Kind.COMPUTE, Kind.IDLE]
    for i, (duration, kind) in enumerate(zip(times, kinds, strict=True)):
        clock.now += duration
        watch.switch(kind, f"op{i}")
    clock.now += 0.3
    seconds, spans = watch.take(), watch.take_spans()
    for kind in Kind:
        of_kind = [span.end_s - span.start_s for span in spans if span.kind is kind]
        assert seconds[kind] == sum(of_kind)
    assert [span.start_s for span in spans[1:]] == [span.end_s for span in spans[:-1]]
    assert (spans[0].start_s, spans[-1].end_s) == (100.0, clock.now)
    labels = ["", "op0", "op1", "op2", "op3", "op4"]
    assert [span.label for span in spans] == labels


def test_no_reading_of_the_clock_within_one_kind_without_trace() -> None:
    readings = []

    def now() -> float:
        readings.append(1.0)
        return 1.0

    watch = Stopwatch(now)
    watch.switch(Kind.COMPUTE, "a")
    before = len(readings)
    watch.switch(Kind.COMPUTE, "b")
    assert len(readings) == before
    watch.trace(True)
    watch.switch(Kind.COMPUTE, "c")
    assert len(readings) == before + 1


def test_spans_only_while_traced_and_only_once() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    clock.now = 101.0
    watch.switch(Kind.COMPUTE, "x")
    assert watch.take_spans() == ()
    watch.trace(True)
    clock.now = 102.0
    watch.switch(Kind.IDLE)
    assert watch.take_spans() == (Span(Kind.COMPUTE, "x", 101.0, 102.0),)
    assert watch.take_spans() == ()
    watch.trace(False)
    clock.now = 103.0
    watch.switch(Kind.SEND)
    assert watch.take_spans() == ()


FIRST, SECOND = (TransferKey(Channel.parse("A0>F0.act"), 0, mb) for mb in (0, 1))


def waited(watch: Stopwatch, clock: Clock) -> None:
    """Wait from 100 to 104 for one payload, to 106 for another, compute to 107."""
    watch.switch(Kind.RECV_WAIT, "wait 0", awaited=FIRST)
    clock.now = 104.0
    watch.switch(Kind.RECV_WAIT, "wait 1", awaited=SECOND)
    clock.now = 106.0
    watch.switch(Kind.COMPUTE, "op")
    clock.now = 107.0


@pytest.mark.parametrize("traced", [False, True])
def test_waits_are_idle_until_what_they_wait_for_is_sent(traced: bool) -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    watch.trace(traced)
    waited(watch, clock)
    watch.settle({FIRST: 103.0, SECOND: 102.0})
    seconds, spans = watch.take(), watch.take_spans()
    assert seconds == dict.fromkeys(Kind, 0.0) | {
        Kind.IDLE: 3.0,
        Kind.RECV_WAIT: 3.0,
        Kind.COMPUTE: 1.0,
    }
    expected = (
        Span(Kind.IDLE, "wait 0", 100.0, 103.0),
        Span(Kind.RECV_WAIT, "wait 0", 103.0, 104.0),
        Span(Kind.RECV_WAIT, "wait 1", 104.0, 106.0),
        Span(Kind.COMPUTE, "op", 106.0, 107.0),
    )
    assert spans == (expected if traced else ())
    assert not traced or seconds_by_kind(spans) == seconds


@pytest.mark.parametrize(
    ("sent", "idle_s"),
    [({FIRST: 99.0, SECOND: 0.0}, 0.0), ({FIRST: 110.0, SECOND: 110.0}, 6.0), ({}, 6.0)],
    ids=["before", "after, by a clock that is ahead", "never"],
)
def test_a_wait_is_charged_once_whenever_it_was_sent(
    sent: dict[TransferKey, float], idle_s: float
) -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    watch.trace(True)
    waited(watch, clock)
    watch.settle(sent)
    seconds, spans = watch.take(), watch.take_spans()
    assert (seconds[Kind.IDLE], seconds[Kind.RECV_WAIT]) == (idle_s, 6.0 - idle_s)
    assert [(span.start_s, span.end_s) for span in spans] == [
        (100.0, 104.0),
        (104.0, 106.0),
        (106.0, 107.0),
    ]


def test_waits_that_nobody_settles_are_not_lost() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    waited(watch, clock)
    assert watch.take()[Kind.RECV_WAIT] == 6.0
    watch.settle({FIRST: 103.0})
    assert watch.take() == dict.fromkeys(Kind, 0.0)
