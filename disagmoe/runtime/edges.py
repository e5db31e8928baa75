"""How fast the edges of a channel are, measured by its members while nothing else moves."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from disagmoe.runtime.moments import Moment, Moments
from disagmoe.transport.base import ChannelSpec, TransportChannel, Work
from disagmoe.transport.collective import reduce_to_all_small
from disagmoe.units import KIB, MIB

LARGE_BYTES = 16 * MIB
_SMALL_BYTES = KIB
_LARGE_TURNS, _SMALL_TURNS = 4, 50
_UNDER_WAY = 2
"""Messages of an edge at once, so that it never waits for the next one to be posted."""

Edge = tuple[str, str]
"""Its source and its target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRate:
    """What the target of an edge has found."""

    channel: str
    source: str
    target: str
    bytes_per_s: float
    """Of large messages, one after the other."""
    message_s: float
    """Of a small message among many, which is what each costs beside its bytes."""


def rounds(spec: ChannelSpec) -> list[tuple[Edge, ...]]:
    """Return each edge of a channel once, in rounds in which a worker has at most one edge that
    leaves it and one that comes to it."""
    sources, targets = spec.sources, spec.targets
    size = max(len(sources), len(targets))
    made = [
        tuple(
            (source, targets[(at + shift) % size])
            for at, source in enumerate(sources)
            if (at + shift) % size < len(targets) and targets[(at + shift) % size] != source
        )
        for shift in range(size)
    ]
    return [edges for edges in made if edges]


class EdgeMeter:
    """One worker's part in measurements. All workers of a run call it together."""

    def __init__(
        self,
        me: str,
        everyone: Sequence[str],
        world: TransportChannel,
        device: torch.device,
        moments: Moments,
        large_bytes: int = LARGE_BYTES,
    ) -> None:
        """`world` is a channel in host memory among `everyone`; `moments` the worker's clock."""
        self._me = me
        self._everyone = everyone
        self._world = world
        self._device = device
        self._moments = moments
        self._large_bytes = large_bytes

    def measure(self, spec: ChannelSpec, channel: TransportChannel | None) -> list[EdgeRate]:
        """Return the rates of the edges that come to this worker; `channel` is None where it is no
        member and only lets the others have the network for themselves.

        Raises TransportError as the channel does.
        """
        found = []
        for edges in rounds(spec):
            self._meet()
            target = next((target for source, target in edges if source == self._me), None)
            source = next((source for source, target in edges if target == self._me), None)
            if channel is None or (source is None and target is None):
                continue
            message_s = self._stream(channel, target, source, _SMALL_BYTES, _SMALL_TURNS)
            large_s = self._stream(channel, target, source, self._large_bytes, _LARGE_TURNS)
            if source is not None:
                found.append(
                    EdgeRate(
                        channel=spec.name,
                        source=source,
                        target=self._me,
                        bytes_per_s=self._large_bytes / large_s,
                        message_s=message_s,
                    )
                )
        self._meet()
        return found

    def _meet(self) -> None:
        nothing = torch.zeros(1, dtype=torch.float64)
        reduce_to_all_small(self._world, self._me, self._everyone, nothing)

    def _stream(
        self,
        channel: TransportChannel,
        target: str | None,
        source: str | None,
        nbytes: int,
        turns: int,
    ) -> float:
        """Send and receive `turns` messages, and one before them, with which time begins; return
        seconds per message."""
        out, into = (
            [{} if peer is None else {peer: self._buffer(nbytes)} for _ in range(_UNDER_WAY)]
            for peer in (target, source)
        )
        works: deque[Work] = deque()
        marks: list[Moment] = []
        for turn in range(turns + 1 + _UNDER_WAY):
            if turn >= _UNDER_WAY:
                works.popleft().wait()
                marks.append(self._moments.now())
            if turn <= turns:
                at = turn % _UNDER_WAY
                works.append(channel.post(out[at], into[at], f"{nbytes} bytes, turn {turn}"))
        # waits for the device, so that buffers are held until it is done with them
        end_s = self._moments.time_s(marks[-1])
        return (end_s - self._moments.time_s(marks[0])) / turns

    def _buffer(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8, device=self._device)
