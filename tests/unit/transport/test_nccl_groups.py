"""The groups of a transfer: small enough, the same at both ends, and never in a circle."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.transport.nccl_groups import MOST_CALLS, divide

Edge = tuple[str, str]
Groups = list[tuple[list[str], list[str]]]


@st.composite
def transfers(draw: st.DrawFn) -> tuple[list[str], set[Edge]]:
    """Workers, and the messages of a transfer among them, oneself left out."""
    names = [f"w{i}" for i in range(draw(st.integers(2, 12)))]
    edges = st.tuples(st.sampled_from(names), st.sampled_from(names))
    return names, draw(st.sets(edges.filter(lambda edge: edge[0] != edge[1])))


def groups_of_all(names: Sequence[str], edges: set[Edge], most_calls: int) -> dict[str, Groups]:
    ranks = {name: rank for rank, name in enumerate(names)}
    return {
        me: divide(
            me,
            [target for target in names if (me, target) in edges],
            [source for source in names if (source, me) in edges],
            ranks,
            most_calls,
        )
        for me in names
    }


def unfinished(groups: dict[str, Groups]) -> dict[str, Groups]:
    """What is left when nothing moves any more. A message moves when both its ends are in groups
    under way, and a group is over when all its messages have moved."""
    left = {me: list(mine) for me, mine in groups.items()}
    moved: set[Edge] = set()
    while True:
        now = {me: mine[0] for me, mine in left.items() if mine}
        sent = {(me, target) for me, (targets, _) in now.items() for target in targets}
        received = {(source, me) for me, (_, sources) in now.items() for source in sources}
        moved |= sent & received
        over = [
            me
            for me, (targets, sources) in now.items()
            if moved.issuperset((me, target) for target in targets)
            and moved.issuperset((source, me) for source in sources)
        ]
        if not over:
            return {me: mine for me, mine in left.items() if mine}
        for me in over:
            left[me].pop(0)


@given(transfers(), st.integers(2, 9))
def test_groups_are_small_complete_and_never_wait_in_a_circle(
    transfer: tuple[list[str], set[Edge]], most_calls: int
) -> None:
    names, edges = transfer
    groups = groups_of_all(names, edges, most_calls)
    each = [group for mine in groups.values() for group in mine]
    assert all(1 <= len(targets) + len(sources) <= most_calls for targets, sources in each)
    sent = [(me, one) for me, mine in groups.items() for targets, _ in mine for one in targets]
    received = [(one, me) for me, mine in groups.items() for _, sources in mine for one in sources]
    assert sorted(sent) == sorted(received) == sorted(edges)
    assert unfinished(groups) == {}


def test_what_waits_in_a_circle_is_seen_by_this_test() -> None:
    """Each sends to the next one before it receives from the one before."""
    groups: dict[str, Groups] = {
        me: [([follower], []), ([], [leader])]
        for leader, me, follower in (("c", "a", "b"), ("a", "b", "c"), ("b", "c", "a"))
    }
    assert unfinished(groups) == groups


@pytest.mark.parametrize(
    ("workers", "sizes"), [(129, [256]), (130, [256, 2]), (300, [256, 256, 86])]
)
def test_an_all_to_all_of_many_workers(workers: int, sizes: list[int]) -> None:
    names = [f"w{i}" for i in range(workers)]
    others = names[1:]
    ranks = {name: rank for rank, name in enumerate(names)}
    groups = divide(names[0], others, others, ranks, MOST_CALLS)
    assert [len(targets) + len(sources) for targets, sources in groups] == sizes
