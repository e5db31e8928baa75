"""What a run asks of the one node that its script is on."""

from pathlib import Path

import pytest

from disagmoe.cluster import ground
from disagmoe.cluster.ground import cuda_on, node_bundle, with_nodes
from disagmoe.cluster.join import Target
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from tests.unit.cluster.clusters import attention, expert, node

ROOT = Path(__file__).resolve().parents[3]
THERE = Target("10.0.0.1:6379", "RAY_ADDRESS")


def config(*sets: str) -> RunConfig:
    return override(RunConfig.load(ROOT / "configs/tiny.toml"), ["cluster.device=cpu", *sets])


@pytest.mark.parametrize(
    ("sets", "total", "cpus", "gpus"),
    [
        ([], {"CPU": 8.0}, 3.0, 0.0),
        ([], {"CPU": 2.0}, 2.0, 0.0),
        ([], {}, 1.0, 0.0),  # which it does not have, and placement says so
        (["cluster.device=cuda"], {"CPU": 8.0, "GPU": 8.0}, 3.0, 3.0),
        (["cluster.device=cuda"], {"CPU": 8.0, "GPU": 1.0}, 3.0, 1.0),
        (["cluster.device=cuda"], {"CPU": 8.0}, 3.0, 1.0),
    ],
)
def test_workers_share_what_a_node_has(
    sets: list[str], total: dict[str, float], cpus: float, gpus: float
) -> None:
    here = node(1, **total)
    bundle = node_bundle(config("parallel.attention_workers=2", *sets), here)
    assert (bundle.cpus, bundle.gpus, bundle.node) == (cpus, gpus, here.id)
    assert bundle.workers == ("A0.0", "A0.1", "F0.0")


def test_devices_are_those_of_the_nodes_where_there_are_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [attention(1, GPU=8.0), expert(2), node(3, GPU=1.0)]
    monkeypatch.setattr(ground, "read_nodes", lambda: nodes)
    monkeypatch.setattr(ground, "this_node", lambda: nodes[2])
    auto, cluster = "cluster.device=auto", "cluster.mode=cluster"
    assert cuda_on(THERE, config(auto))
    assert not cuda_on(THERE, config(auto, cluster))
    assert cuda_on(THERE, config("cluster.device=cuda", cluster))
    nodes[1] = expert(2, GPU=4.0)
    assert cuda_on(THERE, config(auto, cluster))
    filled = with_nodes(THERE, config(cluster, "cluster.device=cuda")).cluster
    assert (filled.attention.workers_per_node, filled.expert.workers_per_node) == (8, 4)
    for target, sets in ((Target(""), [cluster]), (THERE, [])):
        assert with_nodes(target, config(*sets)) == config(*sets)


def test_parts_add_up_to_no_more_than_the_whole() -> None:
    for parts in range(1, 50):
        share = ground.share_of(2.0, parts)
        assert round(share * 10_000) * parts <= 20_000
        assert share == pytest.approx(2 / parts, abs=1e-4)
