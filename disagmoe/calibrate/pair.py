"""Two processes that do the same task together, connected over gloo as workers are."""

import multiprocessing
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, TypeVar

from disagmoe.errors import TransportError

if TYPE_CHECKING:
    import torch

    from disagmoe.transport.base import TransportChannel, Work

_NAMES = ("first", "second")
_TIMEOUT_S = 60.0
_HEADERS = ".headers"

Enter = Callable[[], AbstractContextManager[object]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Where one of the two processes is."""

    address: str
    """Of its host, as the other one reaches it."""
    core: int | None = None
    """The core that it is kept to."""
    enter: Enter = nullcontext
    """Picklable; the process does all in its block."""


@dataclass(frozen=True, slots=True)
class Line:
    """What a task has: its number, 0 or 1, and channels to the other one."""

    rank: int
    channels: "Mapping[str, TransportChannel]"

    def send(self, buffer: "torch.Tensor", *, header: bool = False) -> "Work":
        """Start to send `buffer`; headers have a channel of their own."""
        return self._channel(self.rank, header).post({_NAMES[1 - self.rank]: buffer}, {})

    def receive(self, buffer: "torch.Tensor", *, header: bool = False) -> "Work":
        """Start to receive into `buffer`."""
        return self._channel(1 - self.rank, header).post({}, {_NAMES[1 - self.rank]: buffer})

    def _channel(self, sender: int, header: bool) -> "TransportChannel":
        return self.channels[_NAMES[sender] + (_HEADERS if header else "")]


Task = Callable[[Line], T]


def run_pair(first: End, second: End, task: Task[T], timeout_s: float = _TIMEOUT_S) -> list[T]:
    """Return what `task`, which is picklable, returns at each of two ends on this machine; the
    store listens on that of `first`. All of it takes at most `timeout_s`.

    Raises:
        TransportError: an end does not come, or fails.
    """
    context = multiprocessing.get_context("spawn")
    ends = (first, second)
    pipes, processes = [], []
    for rank in range(2):
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, rank, ends, task), daemon=True)
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    try:
        pipes[1].send(_answer(pipes[0], timeout_s))  # where the store is
        return [_answer(pipe, timeout_s) for pipe in pipes]  # type: ignore[misc]  # what task says
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.close()
            process.join(5)
            process.kill()
            process.join()


def _answer(pipe: Connection, timeout_s: float) -> object:
    if not wait([pipe], timeout_s):
        raise TransportError(f"the measurement of a link gives no answer within {timeout_s:g} s")
    try:
        answer = pipe.recv()
    except EOFError:
        raise TransportError("a process of the measurement of a link has died") from None
    if isinstance(answer, Exception):
        raise answer
    found: object = answer
    return found


def _serve(pipe: Connection, rank: int, ends: tuple[End, End], task: Task[object]) -> None:
    # torch takes seconds to import
    from disagmoe.transport.rendezvous import StoreServer

    own = ends[rank]
    if own.core is not None:
        os.sched_setaffinity(0, {own.core})
    try:
        with own.enter():
            if rank == 0:
                store = StoreServer(own.address)
                pipe.send((store.host, store.port))
                with closing(store):
                    pipe.send(_connected(rank, own, (store.host, store.port), task))
                    pipe.poll(_TIMEOUT_S)  # the other end leaves the store first
            else:
                pipe.send(_connected(rank, own, pipe.recv(), task))
    except Exception as error:  # noqa: BLE001 - raised again by the parent
        pipe.send(TransportError(f"{_NAMES[rank]} end at {own.address}: {error}"))


def _connected(rank: int, own: End, store: tuple[str, int], task: Task[object]) -> object:
    import torch

    from disagmoe.transport.base import ChannelSpec
    from disagmoe.transport.gloo import GlooTransport
    from disagmoe.transport.rendezvous import connect

    torch.set_num_threads(1)
    transport = GlooTransport(
        _NAMES[rank],
        connect(*store, _TIMEOUT_S),
        epoch=0,
        host=own.address,
        timeout_s=_TIMEOUT_S,
        start_timeout_s=_TIMEOUT_S,
    )
    with closing(transport):
        specs = [
            ChannelSpec(sender + suffix, (sender,), (receiver,))
            for sender, receiver in (_NAMES, _NAMES[::-1])
            for suffix in ("", _HEADERS)
        ]
        return task(Line(rank, transport.open(specs)))
