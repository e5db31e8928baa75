"""Sums over the members of a mesh channel, always in rank order: same members, same bits.

A buffer of n elements is divided into contiguous shards, one per member. A member adds the pieces
of its shard as ((g0 + g1) + g2) + ..., so that the result does not depend on who is early, and is
what one process would get by adding the members' values in that order.
"""

import itertools
from collections.abc import Iterator, Sequence

import torch

from disagmoe.errors import TransportError
from disagmoe.transport.base import TransportChannel
from disagmoe.units import MIB

_CHUNK_BYTES = 64 * MIB


def shard_bounds(count: int, shards: int) -> list[tuple[int, int]]:
    """Return start and stop of each of `shards` contiguous shards; the first ones are longer."""
    size, longer = divmod(count, shards)
    starts = [rank * size + min(rank, longer) for rank in range(shards + 1)]
    return list(itertools.pairwise(starts))


def reduce_scatter(
    channel: TransportChannel, me: str, members: Sequence[str], buffer: torch.Tensor
) -> torch.Tensor:
    """Return this member's shard (see `shard_bounds`) of the sum of all members' flat `buffer`."""
    shards = _shards(members, buffer)
    own = shards[me]
    pieces = {peer: own if peer == me else torch.empty_like(own) for peer in members}
    others = [peer for peer in members if peer != me]
    if others:
        channel.post(
            {peer: shards[peer] for peer in others}, {peer: pieces[peer] for peer in others}
        ).wait()
    total = pieces[members[0]].clone()
    for peer in members[1:]:
        total += pieces[peer]
    return total


def all_gather(
    channel: TransportChannel,
    me: str,
    members: Sequence[str],
    shard: torch.Tensor,
    buffer: torch.Tensor,
) -> None:
    """Fill the flat `buffer` of every member with all members' `shard`, in rank order."""
    shards = _shards(members, buffer)
    shards[me].copy_(shard)
    others = [peer for peer in members if peer != me]
    if others:
        channel.post(
            dict.fromkeys(others, shards[me]), {peer: shards[peer] for peer in others}
        ).wait()


def sum_in_rank_order(
    channel: TransportChannel,
    me: str,
    members: Sequence[str],
    tensors: Sequence[torch.Tensor],
    *,
    chunk_bytes: int = _CHUNK_BYTES,
) -> None:
    """Replace each of the contiguous `tensors` by its sum over all members, on all members.

    All members pass tensors of the same sizes and of one type. Memory beyond the tensors is three
    times `chunk_bytes` at most. Raises TransportError for tensors of several types.
    """
    if len(members) == 1 or not tensors:
        return
    types = {tensor.dtype for tensor in tensors}
    if len(types) > 1:
        raise TransportError(f"{me} sums tensors of types {sorted(map(str, types))}; use one type")
    for views in _chunks(tensors, max(1, chunk_bytes // tensors[0].element_size())):
        buffer = torch.cat(views)
        shard = reduce_scatter(channel, me, members, buffer)
        all_gather(channel, me, members, shard, buffer)
        for view, part in zip(views, torch.split(buffer, [len(v) for v in views]), strict=True):
            view.copy_(part)


def reduce_to_all_small(
    channel: TransportChannel, me: str, members: Sequence[str], vector: torch.Tensor
) -> torch.Tensor:
    """Return the sum of all members' fp64 `vector`: gathered and added by the first member.

    Two posts, whatever the number of members. Raises TransportError for another type than fp64.
    """
    if vector.dtype != torch.float64:
        raise TransportError(f"{me} reduces a vector of {vector.dtype}; expected torch.float64")
    total = vector.clone()
    first, others = members[0], members[1:]
    if me != first:
        channel.post({first: vector}, {}).wait()
        channel.post({}, {first: total}).wait()
    elif others:
        gathered = {peer: torch.empty_like(vector) for peer in others}
        channel.post({}, gathered).wait()
        for peer in others:
            total += gathered[peer]
        channel.post(dict.fromkeys(others, total), {}).wait()
    return total


def _shards(members: Sequence[str], buffer: torch.Tensor) -> dict[str, torch.Tensor]:
    bounds = shard_bounds(len(buffer), len(members))
    return {
        member: buffer[start:stop] for member, (start, stop) in zip(members, bounds, strict=True)
    }


def _chunks(tensors: Sequence[torch.Tensor], limit: int) -> Iterator[list[torch.Tensor]]:
    """Yield flat views of `tensors` in order, in lists of at most `limit` elements together."""
    views: list[torch.Tensor] = []
    room = limit
    for tensor in tensors:
        flat = tensor.view(-1)
        while len(flat):
            views.append(flat[:room])
            flat = flat[room:]
            room -= len(views[-1])
            if room == 0:
                yield views
                views, room = [], limit
    if views:
        yield views
