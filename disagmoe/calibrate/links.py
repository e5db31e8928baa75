"""What a link between two workers carries, and what its messages take from their compute.

Two processes exchange tensors over gloo as workers do, through channels each way.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Self

from disagmoe.calibrate.fit import message_work
from disagmoe.calibrate.pair import End, Line, run_pair
from disagmoe.costs.calibration import MessageWork
from disagmoe.units import KIB, MIB

_SMALL, _MIDDLE, _LARGE = KIB, 256 * KIB, 32 * MIB
_SMALL_TURNS, _LARGE_TURNS = 100, 5
_SIZES = (64 * KIB, 256 * KIB, MIB)
"""Of messages whose work is measured; workers' are about as large."""
_ROUNDS = 7
_ROUND_S = 0.3
_LEAST_MESSAGES = 4
_LEAST_MESSAGE_S = 2e-3
"""About what a message takes beside compute, however fast the link."""
_UNDER_WAY = 2
"""Messages that are received at once, as by workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """What was found."""

    bytes_per_s: float
    """Of a message so large that the latency is nothing beside it, one way."""
    latency_s: float
    """Of a small one, one way."""
    burst_bytes: float = 0.0
    """What the link carries for nothing when it was idle before."""

    @classmethod
    def of(cls, small_s: float, seconds: Mapping[int, float]) -> Self:
        """From seconds of a small message, and of two larger ones by their sizes; what the smaller
        of those takes less than at the rate of the larger one was for nothing."""
        (middle, middle_s), (large, large_s) = sorted(seconds.items())
        rate = large / large_s
        free = middle - max(0.0, middle_s - small_s) * rate
        return cls(bytes_per_s=rate, latency_s=small_s, burst_bytes=max(0.0, free))


def measure_link(
    first: End, second: End, *, large_bytes: int = _LARGE, small_turns: int = _SMALL_TURNS
) -> LinkRate:
    """Measure the link between two ends on this machine.

    Raises:
        TransportError: an end does not come, or fails.
    """
    task = partial(_turns, large_bytes=large_bytes, small_turns=small_turns)
    return run_pair(first, second, task)[0]


def _turns(line: Line, large_bytes: int, small_turns: int) -> LinkRate:
    """Send messages to and fro; both ends do the same, in the other order."""
    # the best of them: whatever else the machine does only makes it slower
    small_s = min(_turn(line, _SMALL) for _ in range(small_turns)) / 2
    large_s = min(_turn(line, large_bytes) for _ in range(_LARGE_TURNS)) / 2
    middle_s = min(_turn(line, _MIDDLE) for _ in range(_LARGE_TURNS)) / 2
    return LinkRate.of(small_s, {_MIDDLE: middle_s, large_bytes: large_s})


def _turn(line: Line, nbytes: int) -> float:
    """Seconds until a message was there and one as long was back."""
    import torch

    buffer = torch.zeros(nbytes, dtype=torch.uint8)
    began_s = time.perf_counter()
    for sender in range(2):
        (line.send if sender == line.rank else line.receive)(buffer).wait()
    return time.perf_counter() - began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageWorks:
    """What both ends of a message take from compute on their processors."""

    send: MessageWork
    receive: MessageWork

    @property
    def text(self) -> str:
        """Both, in words."""
        return "messages take from compute: " + ", ".join(
            f"{work.message_s * 1e3:.2f} ms and {work.byte_s * MIB * 1e3:.2f} ms per MiB to {verb}"
            for verb, work in (("send", self.send), ("receive", self.receive))
        )


def measure_messages(
    first: End, second: End, link: LinkRate, *, rounds: int = _ROUNDS
) -> MessageWorks:
    """Measure how much less a thread computes while messages come or go by `link`: everything that
    they bring about counts, in other threads and in the kernel.

    Raises:
        TransportError: an end does not come, or fails.
    """
    counts = {
        size: max(
            _LEAST_MESSAGES,
            round(_ROUND_S / max(_LEAST_MESSAGE_S, size / link.bytes_per_s + link.latency_s)),
        )
        for size in _SIZES
    }
    task = partial(_losses, counts=counts, rounds=rounds)
    ends = run_pair(first, second, task, timeout_s=600.0)
    send, receive = (
        message_work(list(counts), [fmean(end[sends][size] for end in ends) for size in counts])
        for sends in (True, False)
    )
    return MessageWorks(send=send, receive=receive)


_Losses = dict[int, float]
"""Seconds per message by its size."""


def _losses(line: Line, counts: dict[int, int], rounds: int) -> dict[bool, _Losses]:
    """What this end loses, by whether it sends; medians over the rounds."""
    compute = _compute()
    found: dict[bool, _Losses] = {}
    for sender in range(2):
        sends = sender == line.rank
        found[sends] = {
            size: median(_loss(line, sends, size, count, compute) for _ in range(rounds))
            for size, count in counts.items()
        }
    return found


def _loss(line: Line, sends: bool, size: int, count: int, compute: Callable[[], None]) -> float:
    """Compute while `count` messages pass, and then as long without; return what one of them has
    taken. So close together that the machine's own pace is the same."""
    _turn(line, _SMALL)
    messages = threading.Thread(
        target=_send_all if sends else _receive_all, args=(line, size, count)
    )
    messages.start()
    done, seconds = _until(lambda _: not messages.is_alive(), compute)
    messages.join()
    _turn(line, _SMALL)
    alone, alone_s = _until(lambda passed_s: passed_s >= seconds, compute)
    return (seconds - done * alone_s / alone) / count


def _until(end: Callable[[float], bool], compute: Callable[[], None]) -> tuple[int, float]:
    """Compute again and again until `end` says so of the seconds since; return how often, and how
    long that took."""
    began_s = time.perf_counter()
    done = 0
    while True:
        compute()
        done += 1
        seconds = time.perf_counter() - began_s
        if end(seconds):
            return done, seconds


def _compute() -> Callable[[], None]:
    """Something like a small part of an expert."""
    import torch

    rows_RD, weights_DF = torch.ones(256, 256), torch.ones(256, 512)

    def compute() -> None:
        torch.nn.functional.silu(rows_RD @ weights_DF)

    return compute


def _send_all(line: Line, size: int, count: int) -> None:
    """As workers send: a header ahead of every payload."""
    import torch

    header, payload = torch.zeros(4, dtype=torch.int64), torch.zeros(size, dtype=torch.uint8)
    for _ in range(count):
        works = line.send(header, header=True), line.send(payload)
        for work in works:
            work.wait()


def _receive_all(line: Line, size: int, count: int) -> None:
    """As workers receive: a thread posts, another one waits for payloads."""
    import torch

    room = threading.Semaphore(_UNDER_WAY)
    header = torch.zeros(4, dtype=torch.int64)
    with ThreadPoolExecutor(1) as waits:
        for _ in range(count):
            line.receive(header, header=True).wait()
            room.acquire()
            work = line.receive(torch.empty(size, dtype=torch.uint8))
            waits.submit(work.wait).add_done_callback(lambda _: room.release())
