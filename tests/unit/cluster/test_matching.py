"""Bundles on nodes."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from disagmoe.cluster.bundles import Bundle
from disagmoe.cluster.matching import all_placed, in_total, most_placed, now_free
from disagmoe.cluster.nodes import Node
from disagmoe.schedule.layout import Side
from tests.unit.cluster.clusters import node


def ask(side: Side, cpus: float = 1.0) -> Bundle:
    return Bundle(side=side, workers=("A0.0",), cpus=cpus)


def test_a_node_that_could_be_either_goes_where_it_is_needed() -> None:
    both = node(1, attention_node=1.0, expert_node=1.0, CPU=4.0)
    attention_only = node(2, attention_node=1.0, CPU=4.0)
    asked = [ask(Side.ATTENTION), ask(Side.EXPERT)]
    assert most_placed(asked, [both, attention_only], in_total) == {0: 1, 1: 0}
    assert most_placed(asked, [both], in_total) in ({0: 0}, {1: 0})


def test_what_is_in_use_counts_only_where_it_is_asked_for() -> None:
    used = node(1, attention_node=1.0, CPU=4.0, free={"CPU": 4.0})
    assert all_placed([ask(Side.ATTENTION)], [used], in_total)
    assert not all_placed([ask(Side.ATTENTION)], [used], now_free)


_RESOURCES = st.fixed_dictionaries(
    {
        "attention_node": st.integers(0, 1),
        "expert_node": st.integers(0, 1),
        "CPU": st.integers(0, 3),
    }
)
_NEEDS = st.builds(ask, st.sampled_from([Side.ATTENTION, Side.EXPERT]), st.integers(1, 3))


@given(st.lists(_RESOURCES, max_size=5), st.lists(_NEEDS, max_size=5))
def test_as_many_are_placed_as_by_trying_everything(
    resources: list[dict[str, int]], asked: list[Bundle]
) -> None:
    nodes = [node(i + 1, **total) for i, total in enumerate(resources)]
    found = most_placed(asked, nodes, in_total)
    assert len(set(found.values())) == len(found)
    assert all(asked[b].fits(nodes[n], nodes[n].total) for b, n in found.items())
    assert len(found) == best_by_trying(asked, nodes)


def best_by_trying(asked: list[Bundle], nodes: list[Node]) -> int:
    padded = [*nodes, *[None] * len(asked)]
    return max(
        sum(n is not None and b.fits(n, n.total) for b, n in zip(asked, order, strict=True))
        for order in set(permutations(range(len(padded)), len(asked)))
        for order in [[padded[i] for i in order]]
    )


def test_hundreds_of_nodes_take_no_time() -> None:
    nodes = [node(i, attention_node=1.0, CPU=8.0) for i in range(1, 1025)]
    assert all_placed([ask(Side.ATTENTION)] * 1024, nodes, in_total)
    assert not all_placed([ask(Side.ATTENTION)] * 1025, nodes, in_total)
