"""Sums in rank order: shards, one member, refusals. Sums themselves: tests/contract."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from disagmoe.errors import TransportError
from disagmoe.transport.base import ChannelSpec
from disagmoe.transport.collective import (
    all_gather,
    reduce_scatter,
    reduce_to_all_small,
    shard_bounds,
    sum_in_rank_order,
)
from disagmoe.transport.inproc import InprocHub
from tests.contract.transport_cases import Member, run_threads

ALONE = ("A0.0",)


class Silent:
    """A channel on which nothing may be posted."""

    def post(self, sends: object, recvs: object) -> None:
        raise AssertionError("one member needs no message")


@given(st.integers(0, 1000), st.integers(1, 20))
@settings(derandomize=True, database=None)
def test_shards_cover_the_buffer_and_differ_by_one_at_most(count: int, shards: int) -> None:
    bounds = shard_bounds(count, shards)
    covered = [index for start, stop in bounds for index in range(start, stop)]
    sizes = [stop - start for start, stop in bounds]
    assert covered == list(range(count))
    assert len(sizes) == shards
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


def test_one_member_sends_no_message() -> None:
    tensors = [torch.ones(3), torch.ones(2)]
    sum_in_rank_order(Silent(), "A0.0", ALONE, tensors)
    assert [t.tolist() for t in tensors] == [[1.0] * 3, [1.0] * 2]
    buffer = torch.arange(3.0)
    shard = reduce_scatter(Silent(), "A0.0", ALONE, buffer)
    assert shard.tolist() == [0.0, 1.0, 2.0]
    all_gather(Silent(), "A0.0", ALONE, shard * 2, buffer)
    assert buffer.tolist() == [0.0, 2.0, 4.0]
    vector = torch.ones(2, dtype=torch.float64)
    assert reduce_to_all_small(Silent(), "A0.0", ALONE, vector).tolist() == [1.0, 1.0]


def test_fewer_elements_than_members() -> None:
    members = ("A0.0", "A0.1", "A0.2", "A0.3")
    mesh = ChannelSpec("mesh", members, members, mesh=True)

    def case(member: Member) -> float:
        tensors = [torch.tensor(float(members.index(member.me)))]
        sum_in_rank_order(member.channels["mesh"], member.me, members, tensors)
        return tensors[0].item()

    hub = InprocHub(members, 10)
    assert run_threads(hub.transport, case, (mesh,)) == dict.fromkeys(members, 6.0)


def test_mixed_types_are_refused() -> None:
    mixed = [torch.ones(1), torch.ones(1, dtype=torch.float64)]
    with pytest.raises(TransportError, match=r"A0\.0 sums tensors of types .*float32.*float64"):
        sum_in_rank_order(Silent(), "A0.0", ("A0.0", "A0.1"), mixed)


def test_small_reductions_are_fp64() -> None:
    with pytest.raises(TransportError, match=r"vector of torch\.float32; expected torch\.float64"):
        reduce_to_all_small(Silent(), "A0.0", ALONE, torch.ones(1))
