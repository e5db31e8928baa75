import pytest

from disagmoe.runtime.clock import Kind, Shares, Span, Stopwatch


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


def test_shares_are_of_all_time() -> None:
    seconds = {
        "compute": 3.0,
        "optimizer": 1.0,
        "data": 1.0,
        "send": 1.0,
        "recv_wait": 2.0,
        "idle": 1.0,
        "checkpoint": 1.0,
    }
    shares = Shares.of(seconds)
    assert shares.utilisation == pytest.approx(0.5)
    assert shares.exposed_communication == pytest.approx(0.3)
    assert shares.bubble == pytest.approx(0.2)
    assert Shares.of({}) == Shares(utilisation=0.0, exposed_communication=0.0, bubble=0.0)
