"""Who exchanges with whom: both ends of every channel must agree, and nobody is left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.schedule.gateways import gateways, hosts, neighbours, peers, served
from disagmoe.schedule.layout import Group, Layout, Side, Worker


def layout(attention: int, experts: int, per_host: int, **more: object) -> Layout:
    return Layout(
        layers=2,
        attention_workers=attention,
        expert_workers=experts,
        workers_per_host=per_host,
        **more,
    )


def names(workers: tuple[Worker, ...]) -> list[str]:
    return [str(worker) for worker in workers]


def test_hosts_are_filled_in_rank_order() -> None:
    assert hosts(layout(1, 5, 2)) == (range(2), range(2, 4), range(4, 5))


def test_gateways_have_the_number_of_the_attention_worker_where_hosts_have_it() -> None:
    """Four attention workers in hosts of two, five expert workers: the last host has one."""
    ring = layout(4, 5, 2)
    found = [names(gateways(ring, 0, Worker(Group(Side.ATTENTION, 0), r))) for r in range(4)]
    even, odd = ["F0.0", "F0.2", "F0.4"], ["F0.1", "F0.3", "F0.4"]
    assert found == [even, odd, even, odd]
    experts = Group(Side.EXPERT, 0)
    assert names(served(ring, 0, Worker(experts, 1))) == ["A0.1", "A0.3"]
    assert names(served(ring, 0, Worker(experts, 4))) == ["A0.0", "A0.1", "A0.2", "A0.3"]
    assert names(served(layout(1, 4, 2), 0, Worker(experts, 3))) == []
    assert names(neighbours(ring, 0, Worker(experts, 3, 1))) == ["r1.F0.2", "r1.F0.3"]


@pytest.mark.parametrize("per_host", [2, 3, 4])
def test_where_roles_share_workers_each_is_the_gateway_of_its_own_host(per_host: int) -> None:
    ring = layout(8, 8, per_host, colocated=True)
    for rank in range(8):
        own = rank // per_host
        assert gateways(ring, 0, Worker(Group(Side.ATTENTION, 0), rank))[own].rank == rank


@given(st.integers(1, 6), st.integers(1, 7), st.integers(0, 4), st.booleans())
def test_both_ends_agree_on_every_channel(
    attention: int, experts: int, per_host: int, pair: bool
) -> None:
    more = {"groups": 2, "fused_residual": True} if pair else {}
    ring = layout(attention, experts, per_host, **more)
    for channel in ring.channels():
        pairs = {
            (sender, receiver)
            for sender in ring.members(channel.source)
            for receiver in peers(ring, channel, sender, sends=True)
        }
        assert pairs == {
            (sender, receiver)
            for receiver in ring.members(channel.target)
            for sender in peers(ring, channel, receiver, sends=False)
        }
        if per_host and not channel.intra:
            assert len(pairs) == attention * len(hosts(ring))
        if channel.intra:
            assert len(pairs) == sum(len(host) ** 2 for host in hosts(ring))
