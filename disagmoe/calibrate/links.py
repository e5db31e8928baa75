"""What a link between two workers carries: bytes per second, and the latency of a small message.

Two processes exchange tensors over gloo as workers do, through a channel each way.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

import torch

from disagmoe.errors import TransportError
from disagmoe.units import KIB, MIB

_NAMES = ("first", "second")
_TIMEOUT_S = 60.0
_SMALL, _LARGE = KIB, 32 * MIB
_SMALL_TURNS, _LARGE_TURNS = 100, 5

Enter = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Where one of the two processes is."""

    address: str
    """Of its host, as the other one reaches it."""
    core: int | None = None
    """The core that it is kept to."""
    enter: Enter = nullcontext
    """Picklable; the process does all in its block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """What was found."""

    bytes_per_s: float
    """Of a message so large that the latency is nothing beside it, one way."""
    latency_s: float
    """Of a small one, one way."""


def measure_link(
    first: End, second: End, *, large_bytes: int = _LARGE, small_turns: int = _SMALL_TURNS
) -> LinkRate:
    """Measure the link between two ends on this machine; the store listens on that of `first`.

    Raises:
        TransportError: an end does not come, or fails.
    """
    context = multiprocessing.get_context("spawn")
    ends = (first, second)
    pipes, processes = [], []
    for rank in range(2):
        here, there = context.Pipe()
        process = context.Process(
            target=_serve, args=(there, rank, ends, large_bytes, small_turns), daemon=True
        )
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    try:
        pipes[1].send(_answer(pipes[0]))  # where the store is
        rate = _answer(pipes[0])
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.close()
            process.join(5)
            process.kill()
            process.join()
    assert isinstance(rate, LinkRate)
    return rate


def _answer(pipe: Connection) -> object:
    if not wait([pipe], _TIMEOUT_S):
        raise TransportError(f"the measurement of a link gives no answer within {_TIMEOUT_S:g} s")
    try:
        answer = pipe.recv()
    except EOFError:
        raise TransportError("a process of the measurement of a link has died") from None
    if isinstance(answer, Exception):
        raise answer
    found: object = answer
    return found


def _serve(
    pipe: Connection, rank: int, ends: tuple[End, End], large_bytes: int, small_turns: int
) -> None:
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
                    pipe.send(_turns(rank, own, (store.host, store.port), large_bytes, small_turns))
            else:
                _turns(rank, own, pipe.recv(), large_bytes, small_turns)
    except Exception as error:  # noqa: BLE001 - raised again by the parent
        pipe.send(TransportError(f"{_NAMES[rank]} end at {own.address}: {error}"))


def _turns(
    rank: int, own: End, store: tuple[str, int], large_bytes: int, small_turns: int
) -> LinkRate:
    """Send messages to and fro; both ends do the same, in the other order."""
    from disagmoe.transport.base import ChannelSpec
    from disagmoe.transport.gloo import GlooTransport
    from disagmoe.transport.rendezvous import connect

    torch.set_num_threads(1)
    peer = _NAMES[1 - rank]
    transport = GlooTransport(
        _NAMES[rank],
        connect(*store, _TIMEOUT_S),
        epoch=0,
        host=own.address,
        timeout_s=_TIMEOUT_S,
        start_timeout_s=_TIMEOUT_S,
    )
    with closing(transport):
        channels = transport.open(
            [
                ChannelSpec("there", _NAMES[:1], _NAMES[1:]),
                ChannelSpec("back", _NAMES[1:], _NAMES[:1]),
            ]
        )

        def turn(nbytes: int) -> float:
            """Seconds until a message was there and one as long was back."""
            buffer = torch.zeros(nbytes, dtype=torch.uint8)
            began_s = time.perf_counter()
            for sender, name in enumerate(("there", "back")):
                if rank == sender:
                    channels[name].post({peer: buffer}, {}).wait()
                else:
                    channels[name].post({}, {peer: buffer}).wait()
            return time.perf_counter() - began_s

        # the best of them: whatever else the machine does only makes it slower
        small_s = min(turn(_SMALL) for _ in range(small_turns)) / 2
        large_s = min(turn(large_bytes) for _ in range(_LARGE_TURNS)) / 2
    return LinkRate(bytes_per_s=large_bytes / large_s, latency_s=small_s)


def measure_devices(
    first: torch.device, second: torch.device, *, large_bytes: int = 8 * _LARGE
) -> LinkRate:
    """Measure copies from one device to the other: NVLink between GPUs that have it, else PCIe."""

    def copy_s(nbytes: int) -> float:
        source = torch.zeros(nbytes, dtype=torch.uint8, device=first)
        target = torch.zeros(nbytes, dtype=torch.uint8, device=second)
        _settle(first, second)
        began_s = time.perf_counter()
        target.copy_(source)
        _settle(first, second)
        return time.perf_counter() - began_s

    small_s = min(copy_s(_SMALL) for _ in range(_SMALL_TURNS))
    large_s = min(copy_s(large_bytes) for _ in range(_LARGE_TURNS))
    return LinkRate(bytes_per_s=large_bytes / large_s, latency_s=small_s)


def _settle(*devices: torch.device) -> None:
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
