"""How far each worker's clock is from the first worker's, so that traces share one time."""

import time
from collections.abc import Callable, Sequence

import torch

from disagmoe.transport.base import TransportChannel

_ROUNDS = 8


def clock_offset(
    channel: TransportChannel,
    me: str,
    members: Sequence[str],
    now: Callable[[], float] = time.perf_counter,
) -> float:
    """Return what to add to this worker's clock to get the first member's, in seconds.

    The first member asks every other one for its time, _ROUNDS times; the answer with the shortest
    round trip counts, taken to be from its middle (Mills, RFC 5905 section 8). All members call it
    together; the error is at most half of that round trip.
    """
    first, others = members[0], members[1:]
    if me == first:
        for peer in others:
            offset = torch.tensor([_ask(channel, peer, now)], dtype=torch.float64)
            channel.post({peer: offset}, {}).wait()
        return 0.0
    message = torch.zeros(1, dtype=torch.float64)
    for _ in range(_ROUNDS):
        channel.post({}, {first: message}).wait()
        channel.post({first: torch.tensor([now()], dtype=torch.float64)}, {}).wait()
    channel.post({}, {first: message}).wait()
    return message.item()


def _ask(channel: TransportChannel, peer: str, now: Callable[[], float]) -> float:
    best = (float("inf"), 0.0)
    answer = torch.zeros(1, dtype=torch.float64)
    for _ in range(_ROUNDS):
        asked = now()
        channel.post({peer: torch.zeros(1, dtype=torch.float64)}, {}).wait()
        channel.post({}, {peer: answer}).wait()
        answered = now()
        best = min(best, (answered - asked, (asked + answered) / 2 - answer.item()))
    return best[1]
