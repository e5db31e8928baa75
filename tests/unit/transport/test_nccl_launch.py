"""What the launch thread tells those who wait, without NCCL: streams and watch are fakes."""

import threading
from collections.abc import Callable, Sequence

import pytest
import torch

from disagmoe.errors import TransportError
from disagmoe.transport.nccl_book import Entry
from disagmoe.transport.nccl_launch import Flight, LaunchThread, Watch
from disagmoe.transport.streams import Event, Stream

WAIT_S = 20.0


class Moment:
    """An event that passes when it is told to."""

    def __init__(self) -> None:
        self.passed = threading.Event()

    def query(self) -> bool:
        return self.passed.is_set()

    def since(self, earlier: Event) -> float:
        return 0.0


class Line:
    """A stream whose points pass with `moment`."""

    handle = 0

    def __init__(self, moment: Moment) -> None:
        self._moment = moment

    def wait(self, event: Event) -> None:
        """Nothing is queued before it."""

    def record(self) -> Event:
        return self._moment


class Lines:
    device = torch.device("cpu")

    def bind(self) -> None:
        """There is one device."""

    def open(self) -> Stream:
        return Line(Moment())

    def now(self) -> Event:
        return Moment()

    def hold(self, event: Event, check: Callable[[], None]) -> None:
        assert isinstance(event, Moment)
        assert event.passed.wait(WAIT_S)


class Failing(Watch):
    """Finds a failure once it is struck, and explains it when it is let."""

    def __init__(self) -> None:
        self.struck, self.asked, self.let = (threading.Event() for _ in range(3))
        self.aborted = threading.Event()

    def health(self) -> None:
        if self.struck.is_set():
            raise TransportError("the peer is gone")

    def explain(self, reason: str, unfinished: Sequence[Entry]) -> str:
        self.asked.set()
        assert self.let.wait(WAIT_S)
        return f"{reason}, explained"

    def abort(self) -> None:
        self.aborted.set()


class Inexplicable(Failing):
    def explain(self, reason: str, unfinished: Sequence[Entry]) -> str:
        raise ValueError("a book that cannot be read")


def flight(moment: Moment) -> Flight:
    entry = Entry("A0>F0.act", 0, "L0 m0", ())
    return Flight(entry, Line(moment), (), lambda: None, ())


def test_what_completes_while_a_failure_is_explained_is_no_success() -> None:
    watch, moment = Failing(), Moment()
    thread = LaunchThread("A0.0", Lines(), watch, 5.0)
    flying = flight(moment)
    thread.launch(flying)
    watch.struck.set()
    assert watch.asked.wait(WAIT_S)
    moment.passed.set()
    threading.Timer(0.2, watch.let.set).start()
    with pytest.raises(TransportError, match=r"^the peer is gone, explained$"):
        thread.wait(flying)
    thread.close(lambda: None)


def test_a_failure_that_cannot_be_explained_is_told_as_it_is() -> None:
    watch = Inexplicable()
    thread = LaunchThread("A0.0", Lines(), watch, 5.0)
    watch.struck.set()
    assert watch.aborted.wait(WAIT_S)
    with pytest.raises(TransportError, match=r"^the peer is gone$"):
        thread.check()
    thread.close(lambda: None)
