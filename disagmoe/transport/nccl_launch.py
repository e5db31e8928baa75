"""The one thread of a worker in which NCCL is called: joins, launches, watches and aborts.

NCCL wants all launches of a process from one thread and in one order. Whoever posts hands the
transfer to this thread and goes on; the order is that of handing over. Between launches the thread
looks at what is under way, so that a failure is noticed while the program waits for the device.
"""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from disagmoe.errors import TransportError
from disagmoe.transport.nccl_book import Entry
from disagmoe.transport.streams import Event, Stream, Streams

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_S = 0.002
"""Between looks at transfers under way; a look is a query of the driver and takes a microsecond."""
_IDLE_S = 0.05
_HEALTH_S = 0.1
"""Between looks at the communicators' errors."""
_ABORT_S = 20.0
"""Aborting may hang where a peer's kernel still spins (NVIDIA/nccl 549, 564): then the process
ends."""
_EXPLAIN_S = 30.0
"""Asking the others may take as long as the store's deadlines."""
EXIT_CODE = 70
"""Of a process that could not abort; EX_SOFTWARE of sysexits.h."""


@dataclass(slots=True, eq=False)
class Flight:
    """One grouped transfer, from its post to its completion."""

    entry: Entry
    stream: Stream
    ready: tuple[Event, ...]
    """What it begins after: its tensors are computed, its buffers are read."""
    launch: Callable[[], None]
    """The library calls."""
    tensors: tuple[torch.Tensor, ...]
    """Held until the transfer is complete."""
    launched: threading.Event = field(default_factory=threading.Event)
    began: Event | None = None
    done: Event | None = None


class Watch:
    """What the launch thread asks its transport, always in the launch thread."""

    def health(self) -> None:
        """Raise TransportError when a communicator or a peer has failed."""

    def explain(self, reason: str, unfinished: Sequence[Entry]) -> str:
        """Return `reason` with what else can be found out about it."""
        return reason

    def abort(self) -> None:
        """Abort all communicators."""


class LaunchThread:
    """The thread, which ends with `close`."""

    def __init__(self, worker: str, streams: Streams, watch: Watch, timeout_s: float) -> None:
        """A transfer may stand still for `timeout_s` while its device and its peers' are free."""
        self._worker = worker
        self._streams = streams
        self._watch = watch
        self._timeout_s = timeout_s
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._flying: list[Flight] = []
        self._moved_s = time.monotonic()
        self._looked_s = 0.0
        self._failing = False
        self._failure = ""
        self._explained = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="nccl launch", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise TransportError if something has failed; for any thread but the launch thread. While
        the failure is being explained it waits: what completes meanwhile is no success."""
        if self._failing:
            self._explained.wait(_EXPLAIN_S)
            raise TransportError(self._failure or f"worker {self._worker}: a call of NCCL failed")

    def run(self, action: Callable[[], T], within_s: float, what: str) -> T:
        """Return `action()`, done in the launch thread. Raises what it raises, and TransportError
        when it is not done `within_s`."""
        future: Future[T] = Future()

        def do() -> None:
            try:
                future.set_result(action())
            except Exception as error:  # noqa: BLE001 - raised in the caller's thread
                future.set_exception(error)

        self._queue.put(do)
        try:
            return future.result(within_s)
        except FutureTimeoutError:
            raise TransportError(f"{what}: not done within {within_s:g} s") from None

    def launch(self, flight: Flight) -> None:
        """Hand `flight` over."""
        self.check()
        self._queue.put(lambda: self._start(flight))

    def wait(self, flight: Flight) -> None:
        """Let the caller's compute stream go on after `flight`."""
        deadline = time.monotonic() + self._timeout_s
        while not flight.launched.wait(_IDLE_S):
            self.check()
            if time.monotonic() > deadline:
                raise TransportError(
                    f"{flight.entry.where(self._worker)}: not launched within {self._timeout_s:g} "
                    "s; the launch thread stands in a call of NCCL"
                )
        self.check()
        assert flight.done is not None
        self._streams.hold(flight.done, self.check)
        self.check()

    def close(self, farewell: Callable[[], None]) -> None:
        """Complete what is under way, do `farewell` unless something has failed, abort, and end.
        Never waits longer than the time for an abort twice."""

        def end() -> None:
            deadline = time.monotonic() + _ABORT_S / 2
            while self._flying and not self._failure and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                self._land()
            if not self._failure:
                farewell()
                self._settle(f"worker {self._worker} has closed its transport")
                self._abort()

        self._queue.put(end)
        self._queue.put(None)
        self._thread.join(2 * _ABORT_S)

    def _loop(self) -> None:
        self._streams.bind()
        while True:
            try:
                task = self._queue.get(timeout=_POLL_S if self._flying else _IDLE_S)
            except queue.Empty:
                task = _nothing
            if task is None:
                return
            try:
                task()
                self._look()
            except Exception as error:
                log.exception("%s: a call of NCCL failed", self._worker)
                self._fail(str(error) if isinstance(error, TransportError) else repr(error))

    def _start(self, flight: Flight) -> None:
        if self._failure:
            flight.launched.set()
            return
        for event in flight.ready:
            flight.stream.wait(event)
        flight.began = flight.stream.record()
        self._flying.append(flight)
        try:
            flight.launch()
        except TransportError as error:
            raise TransportError(f"{flight.entry.where(self._worker)}: {error}") from error
        flight.done = flight.stream.record()
        self._moved_s = time.monotonic()
        flight.launched.set()

    def _look(self) -> None:
        if self._failure:
            return
        self._land()
        now = time.monotonic()
        if now - self._looked_s >= _HEALTH_S:
            self._looked_s = now
            self._watch.health()
        if not self._flying:
            self._moved_s = now
            return
        if not all(event.query() for event in self._flying[0].ready):
            self._moved_s = now  # the device computes
        if now - self._moved_s > self._timeout_s:
            first = self._flying[0].entry
            raise TransportError(
                f"{first.where(self._worker)}: no progress within {self._timeout_s:g} s"
            )

    def _land(self) -> None:
        """Forget the transfers that are complete."""
        still = [flight for flight in self._flying if not (flight.done and flight.done.query())]
        if len(still) < len(self._flying):
            self._moved_s = time.monotonic()
            self._flying = still

    def _fail(self, reason: str) -> None:
        if self._failure:
            return
        self._failing = True
        try:
            reason = self._watch.explain(reason, [flight.entry for flight in self._flying])
        except Exception:
            log.exception("%s: the failure cannot be explained", self._worker)
        self._settle(reason)
        self._abort()

    def _settle(self, failure: str) -> None:
        self._failure = failure
        self._failing = True
        self._explained.set()

    def _abort(self) -> None:
        guard = threading.Timer(_ABORT_S, self._give_up)
        guard.daemon = True
        guard.start()
        try:
            self._watch.abort()
        except Exception:
            log.exception("%s: abort failed", self._worker)
        finally:
            guard.cancel()
            self._flying.clear()

    def _give_up(self) -> None:
        log.critical("%s: NCCL does not abort within %g s, ending", self._worker, _ABORT_S)
        os._exit(EXIT_CODE)


def _nothing() -> None:
    """What the thread does when nobody asks for anything."""
