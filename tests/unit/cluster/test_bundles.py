"""What a run asks of nodes."""

from dataclasses import replace
from pathlib import Path

import pytest

from disagmoe.cluster.bundles import (
    Bundle,
    NodeShape,
    bundles,
    cluster_bundles,
    filled,
    has_gpus,
    workers_by_side,
)
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from disagmoe.schedule.layout import Side
from tests.unit.cluster.clusters import attention, expert, node

ROOT = Path(__file__).resolve().parents[3]


def config(*sets: str) -> RunConfig:
    loaded = RunConfig.load(ROOT / "configs/tiny.toml")
    return override(loaded, ["cluster.mode=cluster", "cluster.device=cpu", *sets])


def test_sides_never_share_a_node() -> None:
    workers = {Side.ATTENTION: ["A0.0", "A0.1", "A0.2"], Side.EXPERT: ["F0.0", "F0.1"]}
    asked = bundles(workers, dict.fromkeys(workers, NodeShape(workers=2)), gpus_per_worker=1.0)
    assert asked == (
        Bundle(side=Side.ATTENTION, workers=("A0.0", "A0.1"), cpus=2.0, gpus=2.0),
        Bundle(side=Side.ATTENTION, workers=("A0.2",), cpus=1.0, gpus=1.0),
        Bundle(side=Side.EXPERT, workers=("F0.0", "F0.1"), cpus=2.0, gpus=2.0),
    )
    assert asked[1].resources == {"attention_node": 1.0, "CPU": 1.0, "GPU": 1.0}


def test_a_config_says_how_each_side_is_put_on_nodes() -> None:
    asked = cluster_bundles(
        config(
            *("parallel.attention_workers=3", "parallel.expert_workers=2", "cluster.device=cuda"),
            *("cluster.attention.workers_per_node=2", "cluster.attention.gpus_per_node=8"),
            *("cluster.expert.workers_per_node=8", "cluster.expert.accelerator=H800"),
        )
    )
    assert [(bundle.workers, str(bundle)) for bundle in asked] == [
        (("A0.0", "A0.1"), "attention_node 1, CPU 2, GPU 8"),
        (("A0.2",), "attention_node 1, CPU 1, GPU 8"),
        (("F0.0", "F0.1"), "expert_node 1, CPU 2, GPU 2, accelerator H800"),
    ]
    assert asked[2].resources["accelerator_type:H800"] == 0.001


def test_colocated_workers_have_nodes_of_their_own_kind() -> None:
    sets = ("parallel.schedule=ep_1f1b", "cluster.attention.workers_per_node=1")
    (first,) = cluster_bundles(config(*sets))
    assert first == Bundle(side=Side.COLOCATED, workers=("C0.0",), cpus=1.0)
    assert first.resources == {"colocated_node": 1.0, "CPU": 1.0}


def test_workers_of_all_rings_and_groups_come_in_world_order() -> None:
    by_side = workers_by_side(config("parallel.rings=2", "parallel.groups=2").parallel)
    assert by_side == {
        Side.ATTENTION: ["A0.0", "A1.0", "r1.A0.0", "r1.A1.0"],
        Side.EXPERT: ["F0.0", "F1.0", "r1.F0.0", "r1.F1.0"],
    }


def test_a_bundle_may_be_for_one_node_only() -> None:
    here, there = node(1, CPU=2.0), node(2, CPU=2.0)
    bundle = Bundle(side=None, workers=("A0.0",), cpus=1.5, node=here.id)
    assert bundle.resources == {"CPU": 1.5}
    assert bundle.labels == {"ray.io/node-id": here.id}
    assert [bundle.fits(n, n.total) for n in (here, there)] == [True, False]
    assert not bundle.fits(here, {"CPU": 1.4})


def test_nodes_of_a_side_may_be_known_by_a_label() -> None:
    sets = ("cluster.expert.label=pool=b", "cluster.attention.workers_per_node=1")
    _, asked = cluster_bundles(filled(config(*sets), []))
    assert (str(asked), asked.resources, asked.labels) == (
        "label pool=b, CPU 1",
        {"CPU": 1.0},
        {"pool": "b"},
    )
    nodes = [
        expert(1),
        replace(node(2, CPU=1.0), labels={"pool": "b"}),
        replace(node(3, CPU=1.0), labels={"pool": "bb"}),
    ]
    assert [asked.fits(n, n.total) for n in nodes] == [False, True, False]
    assert [asked.is_meant_for(n) for n in nodes] == [False, True, False]


@pytest.mark.parametrize(
    ("sets", "per_node"),
    [
        ([], (1, 1)),
        (["cluster.device=cuda"], (4, 8)),
        (["cluster.device=cuda", "cluster.expert.workers_per_node=3"], (4, 3)),
        (["cluster.device=cuda", "cluster.attention.gpus_per_node=8"], (8, 8)),
        (["cluster.device=cuda", "cluster.attention.accelerator=H800"], (8, 8)),
        (["cluster.device=cuda", "cluster.attention.accelerator=B200"], (1, 8)),
    ],
)
def test_nodes_are_filled_as_the_smallest_that_will_do(
    sets: list[str], per_node: tuple[int, int]
) -> None:
    nodes = [
        attention(1, GPU=8.0, **{"accelerator_type:H800": 1.0}),
        attention(2, GPU=4.0),
        attention(3),
        expert(4, GPU=8.0),
    ]
    cluster = filled(config(*sets), nodes).cluster
    assert (cluster.attention.workers_per_node, cluster.expert.workers_per_node) == per_node


def test_colocated_workers_follow_the_settings_of_attention() -> None:
    nodes = [node(1, colocated_node=1.0, GPU=2.0)]
    colocated = config("parallel.schedule=ep_1f1b", "cluster.device=cuda")
    cluster = filled(colocated, nodes).cluster
    assert (cluster.attention.workers_per_node, cluster.expert.workers_per_node) == (2, 0)


def test_a_cluster_has_gpus_when_each_side_can_have_some() -> None:
    nodes = [attention(1, GPU=8.0), attention(2), expert(3)]
    assert not has_gpus(config(), nodes)
    assert has_gpus(config(), [*nodes, expert(4, GPU=1.0)])
    assert not has_gpus(config("parallel.schedule=ep_1f1b"), nodes)
