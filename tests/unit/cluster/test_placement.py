"""Workers by node, and what is said when a cluster has no such nodes."""

from disagmoe.cluster.placement import Bundle, bundles, by_address, explain
from disagmoe.schedule.layout import Layout, Side


def layout(**changes: object) -> Layout:
    settings = {"layers": 2, "groups": 1, "attention_workers": 3, "expert_workers": 2, **changes}
    return Layout(**settings)  # type: ignore[arg-type]


def test_sides_never_share_a_node() -> None:
    asked = bundles(layout().workers, workers_per_node=2, gpus_per_worker=1.0)
    assert asked == (
        Bundle(Side.ATTENTION, ("A0.0", "A0.1"), 2.0),
        Bundle(Side.ATTENTION, ("A0.2",), 1.0),
        Bundle(Side.EXPERT, ("F0.0", "F0.1"), 2.0),
    )
    assert asked[1].resources == {"attention_node": 1.0, "CPU": 1.0, "GPU": 1.0}


def test_colocated_workers_have_nodes_of_their_own_kind() -> None:
    both = layout(attention_workers=2, colocated=True)
    (first, _) = bundles(both.workers, workers_per_node=1, gpus_per_worker=0.0)
    assert first == Bundle(Side.COLOCATED, ("C0.0",), 0.0)
    assert first.resources == {"colocated_node": 1.0, "CPU": 1.0}


def test_workers_of_a_side_follow_the_addresses_of_their_hosts() -> None:
    """Ray puts equal bundles where it likes; a run that starts again finds its ranks in place."""
    asked = bundles(layout().workers, workers_per_node=1, gpus_per_worker=0.0)
    hosts = ["10.0.0.10", "10.0.0.9", "10.0.0.1", "10.0.0.12", "10.0.0.11"]
    assert by_address(asked, hosts) == [2, 1, 0, 4, 3]


def test_bundles_that_ask_for_more_keep_their_own_nodes() -> None:
    asked = bundles(layout().workers, workers_per_node=2, gpus_per_worker=0.0)
    assert by_address(asked, ["10.0.0.3", "10.0.0.2", "10.0.0.1"]) == [0, 1, 2]


def test_a_cluster_that_does_not_fit_is_shown_beside_what_was_asked() -> None:
    asked = bundles(layout(attention_workers=1, expert_workers=1).workers, 1, 0.0)
    nodes = [
        {
            "NodeManagerAddress": "10.0.0.1",
            "Resources": {"CPU": 4.0, "attention_node": 1.0, "memory": 1e9},
        },
        {"NodeManagerAddress": "10.0.0.2", "Resources": {"CPU": 4.0}},
    ]
    assert explain(asked, nodes, 60.0) == (
        "this cluster has not given 2 nodes within 60 s. Asked, one node each:\n"
        "  A0.0: attention_node 1, CPU 1\n"
        "  F0.0: expert_node 1, CPU 1\n"
        "Nodes have, in use or not:\n"
        "  10.0.0.1: CPU 4, attention_node 1\n"
        "  10.0.0.2: CPU 4\n"
        "start nodes with `ray start --resources '{\"attention_node\": 1}'` (or expert_node, "
        "colocated_node), or end what else runs there"
    )
