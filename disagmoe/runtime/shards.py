"""What a worker answers for in a checkpoint: its shards as slices of global parameters."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from disagmoe.checkpoint.slices import Kind, Slice
from disagmoe.model.partition import LocalTensor
from disagmoe.runtime.update import Update


@dataclass(frozen=True, slots=True)
class ShardSlice:
    """A slice of one parameter, and where it begins in the flat buffers of its segment."""

    slice: Slice
    at: int


@dataclass(frozen=True, slots=True)
class LiveSlice:
    """A slice of one parameter and what the worker keeps of it: views of its own memory."""

    slice: Slice
    tensors: dict[Kind, torch.Tensor]


def shard_slices(tensors: Iterable[LocalTensor], start: int, stop: int) -> Iterator[ShardSlice]:
    """Yield what lies in [start, stop) of a flat buffer that holds `tensors` one after the other.

    Each parameter is one run of elements in it, since experts are stacked along rows.
    """
    at = 0
    for tensor in tensors:
        for part in tensor.parts:
            size = math.prod(part.shape)
            begin = at
            if part.position is not None:
                _, rows, columns = tensor.shape
                begin += (part.position * rows + part.row) * columns
            first, last = max(start, begin), min(stop, begin + size)
            if first < last:
                yield ShardSlice(Slice(part.name, part.shape, first - begin, last - begin), first)
        at += math.prod(tensor.shape)


def live_slices(update: Update) -> Iterator[LiveSlice]:
    """Yield every slice that this worker's optimizer updates: over all workers, each element of
    each parameter once. Weights come only where masters have another type."""
    for held in update.held:
        states = update.optimizer.states
        values = held.segment.flat_value.detach()
        for piece in held.pieces:
            state = states[piece.key]
            for found in shard_slices(held.segment.tensors, piece.start, piece.stop):
                begin = found.at - piece.start
                end = begin + found.slice.stop - found.slice.start
                tensors = {
                    Kind.MASTER: state.master[begin:end],
                    Kind.EXP_AVG: state.exp_avg[begin:end],
                    Kind.EXP_AVG_SQ: state.exp_avg_sq[begin:end],
                }
                if values.dtype != state.master.dtype:
                    tensors[Kind.WEIGHT] = values[piece.start + begin : piece.start + end]
                yield LiveSlice(found.slice, tensors)
