"""Nodes for a run, from a Ray that is told what to do."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from disagmoe.cluster import placement
from disagmoe.cluster.bundles import Bundle
from disagmoe.cluster.nodes import Holder, Node
from disagmoe.cluster.placement import by_address, check_disjoint, placed
from disagmoe.errors import (
    PlacementBusy,
    PlacementError,
    PlacementInfeasible,
    PlacementTimeout,
)
from disagmoe.schedule.layout import Side
from tests.unit.cluster.clusters import attention, expert, node

ASKED = (
    Bundle(side=Side.ATTENTION, workers=("A0.0", "A0.1"), cpus=2.0),
    Bundle(side=Side.EXPERT, workers=("F0.0",), cpus=1.0),
)
HOLDER = Holder("disagmoe-other", {"expert_node": 1.0})


class FakeRay:
    """Gives a placement group once `give_at_s` has come; a look at it takes a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.give_at_s = 0.0
        self.nodes: list[Node] = [node(9), attention(1), expert(2)]
        self.removed = 0
        self.asked: dict[str, Any] = {}
        self.change: Callable[[], None] = lambda: None
        monkeypatch.setattr(placement, "placement_group", self.placement_group)
        monkeypatch.setattr(placement, "placement_group_table", self.table)
        monkeypatch.setattr(placement, "remove_placement_group", self.remove)
        monkeypatch.setattr(placement, "read_nodes", lambda: list(self.nodes))
        monkeypatch.setattr(placement, "read_holders", lambda: {self.nodes[2].id: [HOLDER]})
        monkeypatch.setattr(placement.time, "monotonic", lambda: self.now_s)

    def placement_group(self, bundles: list[dict[str, float]], **options: Any) -> "FakeRay":
        self.asked = {"bundles": bundles, **options}
        return self

    def wait(self, timeout_s: float) -> bool:
        self.now_s += 1
        self.change()
        return self.now_s > self.give_at_s

    def table(self, _: "FakeRay") -> dict[str, Any]:
        return {"bundles_to_node_id": {0: self.nodes[1].id, 1: self.nodes[2].id}}

    def remove(self, _: "FakeRay") -> None:
        self.removed += 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    return FakeRay(monkeypatch)


def test_each_worker_has_its_place_while_the_block_runs(fake: FakeRay) -> None:
    with placed(ASKED, "disagmoe-x") as reservation:
        assert fake.removed == 0
    assert fake.removed == 1
    places = reservation.places
    assert {w: (p.host, p.cpus) for w, p in places.items()} == {
        "A0.0": ("10.0.0.1", 2),
        "A0.1": ("10.0.0.1", 2),
        "F0.0": ("10.0.0.2", 4),
    }
    assert [places[w].strategy.placement_group_bundle_index for w in ("A0.1", "F0.0")] == [0, 1]
    assert fake.asked == {
        "bundles": [{"attention_node": 1.0, "CPU": 2.0}, {"expert_node": 1.0, "CPU": 1.0}],
        "strategy": "STRICT_SPREAD",
        "name": "disagmoe-x",
        "bundle_label_selector": [{}, {}],
    }


def test_all_gpus_of_a_node_are_the_runs_where_it_has_reserved_them(fake: FakeRay) -> None:
    fake.nodes = [node(9), attention(1, GPU=8.0), expert(2, GPU=8.0)]
    asked = [
        Bundle(side=Side.ATTENTION, workers=("A0.0",), cpus=1.0, gpus=8.0),
        Bundle(side=Side.EXPERT, workers=("F0.0",), cpus=1.0, gpus=1.0),
    ]
    with placed(asked, "x") as reservation:
        found = {worker: place.all_gpus for worker, place in reservation.places.items()}
        assert found == {"A0.0": True, "F0.0": False}


def test_what_no_nodes_can_hold_is_not_even_asked_for(fake: FakeRay) -> None:
    fake.nodes.pop()
    with (
        pytest.raises(PlacementInfeasible, match=r"1 of 1 nodes for attention and 0 of 1 nodes"),
        placed(ASKED, "x", nearest=lambda _: ["a = 1"]),
    ):
        pass
    assert fake.asked == {}


def test_nodes_in_use_are_not_waited_for_unless_told(fake: FakeRay) -> None:
    fake.give_at_s = 1e9
    fake.nodes[2] = expert(2, free={"CPU": 4.0})
    with pytest.raises(PlacementBusy) as caught, placed(ASKED, "x"):
        pass
    assert fake.now_s <= 4
    assert fake.removed == 1
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("nodes for this run are in use: free are 1 of 1 nodes for attention")
    assert lines[-2].endswith("held by disagmoe-other (expert_node 1)")
    assert lines[-1] == "end what holds them, or wait for them: --set cluster.wait_s=3600"


def test_nodes_in_use_are_waited_for_and_their_holder_is_told_once(fake: FakeRay) -> None:
    fake.give_at_s = 50
    busy, free = expert(2, free={"CPU": 4.0}), expert(2)
    fake.nodes[2] = busy
    said: list[str] = []

    def change() -> None:
        fake.nodes[2] = busy if fake.now_s < 49 else free

    fake.change = change
    with placed(ASKED, "x", wait_s=60.0, say=said.append) as reservation:
        assert set(reservation.places) == {"A0.0", "A0.1", "F0.0"}
    (text,) = said
    assert "held by disagmoe-other (expert_node 1)" in text
    assert text.endswith("\nwaiting for nodes for at most 60 s (cluster.wait_s)")


def test_waiting_has_an_end(fake: FakeRay) -> None:
    fake.give_at_s = 1e9
    fake.nodes[2] = expert(2, free={"CPU": 4.0})
    with pytest.raises(PlacementBusy) as caught, placed(ASKED, "x", wait_s=20.0):
        pass
    assert 20 <= fake.now_s <= 22
    assert str(caught.value).endswith(
        "\nwaited for 20 s (cluster.wait_s); end what holds them, or wait longer"
    )


def test_a_node_that_goes_while_it_is_waited_for(fake: FakeRay) -> None:
    fake.give_at_s = 1e9

    def change() -> None:
        fake.nodes = fake.nodes[:2]

    fake.change = change
    with pytest.raises(PlacementInfeasible, match="0 of 1 nodes for experts"), placed(ASKED, "x"):
        pass
    assert fake.removed == 1


def test_a_node_that_has_yet_to_join_is_waited_for_where_told(fake: FakeRay) -> None:
    fake.give_at_s = 10
    late = fake.nodes.pop()
    said: list[str] = []

    def change() -> None:
        if fake.now_s == 9:
            fake.nodes.append(late)

    fake.change = change
    with placed(ASKED, "x", wait_s=60.0, say=said.append) as reservation:
        assert reservation.places["F0.0"].node == late.id
    (text,) = said
    assert "1 of 1 nodes for attention and 0 of 1 nodes for experts" in text
    assert text.endswith("\nwaiting for nodes for at most 60 s (cluster.wait_s)")


def test_a_node_that_does_not_join_is_infeasible_in_the_end(fake: FakeRay) -> None:
    fake.give_at_s = 1e9
    fake.nodes.pop()
    with pytest.raises(PlacementInfeasible) as caught, placed(ASKED, "x", wait_s=20.0):
        pass
    assert 20 <= fake.now_s <= 22
    assert str(caught.value).endswith("\nwaited for 20 s (cluster.wait_s) for nodes to join")
    assert fake.removed == 1


def test_free_nodes_that_ray_does_not_give(fake: FakeRay) -> None:
    fake.give_at_s = 1e9
    with pytest.raises(PlacementTimeout, match="within 30 s, although they seem to be free"):  # noqa: SIM117
        with placed(ASKED, "x"):
            pass
    assert fake.removed == 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            [1, 1],
            "Ray has put A0.0 A0.1 and F0.0 on the same node, 10.0.0.1 (node 11111111)",
        ),
        (
            [2, 1],
            "Ray has put attention_node 1, CPU 2 on 10.0.0.2 (node 22222222), which does not have "
            "that",
        ),
        ([1, 3], "nodes have gone while the run was placed: 3333333333333333"),
    ],
)
def test_what_ray_gives_is_checked(given: list[int], problem: str) -> None:
    both = node(1, attention_node=1.0, expert_node=1.0, CPU=4.0)
    nodes = [both, expert(2)]
    with pytest.raises(PlacementError) as caught:
        check_disjoint(ASKED, [f"{number:x}" * 16 for number in given], nodes)
    assert str(caught.value) == problem
    check_disjoint(ASKED, [both.id, nodes[1].id], nodes)


def hosts(*numbers: int) -> list[Node]:
    return [
        replace(node(index), host=f"10.0.0.{number}")
        for index, number in enumerate(numbers, start=1)
    ]


def test_workers_of_a_side_follow_the_addresses_of_their_hosts() -> None:
    """Ray puts equal bundles where it likes; a run that starts again finds its ranks in place."""
    asked = [
        Bundle(side=side, workers=(f"{side}{rank}",), cpus=1.0)
        for side, count in ((Side.ATTENTION, 3), (Side.EXPERT, 2))
        for rank in range(count)
    ]
    assert by_address(asked, hosts(10, 9, 1, 12, 11)) == [2, 1, 0, 4, 3]


def test_bundles_that_ask_for_more_keep_their_own_nodes() -> None:
    asked = [
        ASKED[0],
        Bundle(side=Side.ATTENTION, workers=("A0.2",), cpus=1.0),
        Bundle(side=Side.ATTENTION, workers=("A0.3", "A0.4"), cpus=2.0, accelerator="H800"),
    ]
    assert by_address(asked, hosts(3, 2, 1)) == [0, 1, 2]


def test_places_are_found_again_on_the_nodes_that_are_left(fake: FakeRay) -> None:
    with placed(ASKED, "x") as reservation:
        fake.nodes[2] = expert(3)  # the other one is gone, and Ray has given this one
        assert reservation.renew(frozenset())["F0.0"].host == "10.0.0.3"
        assert fake.removed == 0


def test_a_bad_node_is_left_out_where_another_one_can_take_its_place(fake: FakeRay) -> None:
    said: list[str] = []
    bad = fake.nodes[2]
    with placed(ASKED, "x", say=said.append) as reservation:
        assert reservation.renew(frozenset({bad.id}))["F0.0"].node == bad.id  # there is no other
        assert (fake.removed, said) == (0, [])
        fake.nodes = [node(9), fake.nodes[1], expert(3), bad]
        assert reservation.renew(frozenset({bad.id}))["F0.0"].host == "10.0.0.3"
        assert fake.removed == 1
        assert fake.asked["bundle_label_selector"] == [{"ray.io/node-id": f"!in({bad.id})"}] * 2
        assert said == [f"leaves out {bad.id[:8]}"]
    assert fake.removed == 2


def test_labels_choose_nodes_and_bad_ones_are_left_out_among_them(fake: FakeRay) -> None:
    labelled = [replace(node(i, CPU=4.0), labels={"pool": "a"}) for i in (1, 2, 3)]
    fake.nodes = [node(9), *labelled]
    asked = [
        Bundle(side=side, workers=(worker,), cpus=1.0, label="pool=a")
        for side, worker in ((Side.ATTENTION, "A0.0"), (Side.EXPERT, "F0.0"))
    ]
    bad = labelled[0].id
    with placed(asked, "x") as reservation:
        assert fake.asked["bundles"] == [{"CPU": 1.0}] * 2
        assert fake.asked["bundle_label_selector"] == [{"pool": "a"}] * 2
        fake.nodes = [node(9), *labelled[1:], labelled[0]]
        reservation.renew(frozenset({bad}))
    wanted = {"pool": "a", "ray.io/node-id": f"!in({bad})"}
    assert fake.asked["bundle_label_selector"] == [wanted] * 2
