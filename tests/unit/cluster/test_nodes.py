"""Nodes and who holds them, from the rows of Ray's tables."""

from typing import Any

from disagmoe.cluster.nodes import Holder, holders_of
from tests.unit.cluster.clusters import attention


def group(state: str, name: str = "disagmoe-a", node: str = "n1") -> dict[str, Any]:
    return {
        "placement_group_id": "0123456789abcdef",
        "name": name,
        "state": state,
        "bundles": {0: {"CPU": 1.0, "attention_node": 1.0}, 1: {"CPU": 2.0}},
        "bundles_to_node_id": {0: node, 1: "n2"},
    }


def test_holders_by_node() -> None:
    found = holders_of([group("CREATED"), group("REMOVED", "old"), group("PENDING", "waits")])
    assert found == {
        "n1": [Holder("disagmoe-a", {"CPU": 1.0, "attention_node": 1.0})],
        "n2": [Holder("disagmoe-a", {"CPU": 2.0})],
    }
    assert str(found["n1"][0]) == "disagmoe-a (CPU 1, attention_node 1)"


def test_a_group_without_a_name_has_an_id_and_a_lost_bundle_holds_nothing() -> None:
    found = holders_of([group("RESCHEDULING", name="", node="")])
    assert found == {"n2": [Holder("placement group 01234567", {"CPU": 2.0})]}


def test_a_node_in_words() -> None:
    node = attention(3, GPU=8.0, **{"accelerator_type:H800": 1.0})
    assert (str(node), node.gpus, node.accelerators) == (
        "10.0.0.3 (node 33333333)",
        8,
        ["H800"],
    )
