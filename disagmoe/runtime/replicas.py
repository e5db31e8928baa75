"""One segment of parameters and the workers that hold the same: sum, update of a shard, gather.

ZeRO stage 1 (Rajbhandari et al. 2020, arXiv:1910.02054): each replica gets the summed gradients of
its shard alone, keeps the optimizer state of that shard alone, and sends the updated values to the
others. Sums go in rank order, so the bits do not depend on who is early.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from disagmoe.runtime.parameters import Segment
from disagmoe.transport.base import TransportChannel
from disagmoe.transport.collective import all_gather, reduce_scatter, shard_bounds


@dataclass(frozen=True, slots=True)
class Piece:
    """What lies in this worker's shard of one local tensor."""

    name: str
    start: int
    stop: int
    """Bounds in the flat buffers of the segment."""

    @property
    def key(self) -> str:
        """Name for the optimizer, unique on the worker."""
        return f"{self.name}[{self.start}:{self.stop}]"


class Replicas:
    """This worker's part of one segment."""

    def __init__(
        self,
        segment: Segment,
        me: str,
        members: Sequence[str],
    ) -> None:
        self.segment = segment
        self._me = me
        self._members = members
        self._channel: TransportChannel | None = None
        size = len(segment.flat_grad)
        self.start, self.stop = shard_bounds(size, len(members))[members.index(me)]
        self.pieces = tuple(
            Piece(name, start, stop)
            for name, (start, stop) in segment.slices(self.start, self.stop).items()
        )

    def connect(self, channel: TransportChannel | None) -> None:
        """Take the channel among the replicas, None for a single one."""
        self._channel = channel

    def value_pieces(self) -> dict[str, torch.Tensor]:
        """Views of the values in this worker's shard."""
        flat = self.segment.flat_value.detach()
        return {piece.key: flat[piece.start : piece.stop] for piece in self.pieces}

    def reduce(self) -> dict[str, torch.Tensor]:
        """Sum the gradients of all replicas; return those of this worker's shard."""
        shard = self.segment.flat_grad[self.start : self.stop]
        if self._channel is not None:
            flat = self.segment.flat_grad
            shard = reduce_scatter(self._channel, self._me, self._members, flat)
        return {
            piece.key: shard[piece.start - self.start : piece.stop - self.start]
            for piece in self.pieces
        }

    def gather_values(self) -> None:
        """Give all replicas the values of all shards."""
        self._gather(self.segment.flat_value.detach())

    def gathered(self, pieces: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return whole tensors by local name from every replica's `pieces`, as of `reduce`."""
        flat = torch.empty_like(self.segment.flat_grad)
        for piece in self.pieces:
            flat[piece.start : piece.stop] = pieces[piece.key]
        self._gather(flat)
        return self.segment.views(flat)

    def _gather(self, flat: torch.Tensor) -> None:
        if self._channel is not None:
            shard = flat[self.start : self.stop].clone()
            all_gather(self._channel, self._me, self._members, shard, flat)
