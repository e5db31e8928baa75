"""Buffers that are received into again and again, and what is asked of CUDA."""

from typing import Any

import pytest
import torch

from disagmoe.transport.streams import BufferRing, CudaStreams


class Point:
    """An event with a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def query(self) -> bool:
        return True

    def since(self, earlier: object) -> float:
        return 0.0


def ring() -> tuple[BufferRing, list[int]]:
    made: list[int] = []
    points = iter(range(100))

    def allocate(nbytes: int) -> torch.Tensor:
        made.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)

    return BufferRing(allocate, lambda: Point(next(points))), made


def test_a_buffer_waits_for_its_last_reader_alone() -> None:
    buffers, made = ring()
    first, second = buffers.take(1000), buffers.take(1000)
    buffers.give_back(first)  # point 2
    buffers.give_back(second)  # point 3
    again = buffers.take(900)
    assert (again.data_ptr(), len(again)) == (first.data_ptr(), 900)
    assert buffers.after(again).number == 2
    assert made == [1024, 1024]


def test_a_ring_grows_by_replacing() -> None:
    buffers, made = ring()
    small = buffers.take(600)
    buffers.give_back(small)
    large = buffers.take(5000)
    assert made == [640, 5120]
    assert buffers.nbytes == 5120
    buffers.give_back(large)
    assert len(buffers.take(3000)) == 3000
    assert made == [640, 5120]


def test_other_tensors_are_not_of_the_ring() -> None:
    buffers, _ = ring()
    assert buffers.after(torch.zeros(4)) is None


class FakeStream:
    """Stands for torch.cuda.Stream; keeps what it has been given."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.priority = priority
        self.cuda_stream = 1000
        self.given: list[Any] = []

    def wait_event(self, event: Any) -> None:
        self.given.append(event)


class FakeEvent:
    """Stands for torch.cuda.Event: milliseconds are counted by events that were recorded."""

    made = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.stream: Any = None
        self.at_ms = 0

    def record(self, stream: Any) -> None:
        FakeEvent.made += 1
        self.stream, self.at_ms = stream, FakeEvent.made

    def query(self) -> bool:
        return self.stream is not None

    def elapsed_time(self, end: "FakeEvent") -> float:
        return float(end.at_ms - self.at_ms)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeStream:
    """Let torch have a device, whose current stream is returned."""
    current = FakeStream()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    return current


def test_time_between_events_is_in_seconds(cuda: FakeStream) -> None:
    streams = CudaStreams(torch.device("cpu"))
    first, second = streams.now(), streams.now()
    assert second.query()
    assert second.since(first) == 0.001


def test_compute_goes_on_after_a_transfer_without_the_host(cuda: FakeStream) -> None:
    streams = CudaStreams(torch.device("cpu"))
    stream: Any = streams.open()
    assert (stream.handle, stream._stream.priority) == (1000, -1)
    computed: Any = streams.now()
    stream.wait(computed)
    done: Any = stream.record()
    asked: list[str] = []
    streams.hold(done, lambda: asked.append("check"))
    assert stream._stream.given == [computed.event]
    assert (computed.event.stream, done.event.stream) == (cuda, stream._stream)
    assert (cuda.given, asked) == ([done.event], ["check"])


def test_a_thread_is_bound_to_the_device(cuda: FakeStream, monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", bound.append)
    streams = CudaStreams(torch.device("cpu"))
    streams.bind()
    assert bound == [streams.device]
