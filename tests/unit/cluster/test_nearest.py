"""The nearest config that a cluster can hold."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagmoe.cluster.bundles import cluster_bundles, filled
from disagmoe.cluster.matching import all_placed, in_total
from disagmoe.cluster.nearest import nearest_fit
from disagmoe.cluster.nodes import Node
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from tests.unit.cluster.clusters import attention, expert, node

ROOT = Path(__file__).resolve().parents[3]
TINY = RunConfig.load(ROOT / "configs/tiny.toml")
BASE = (
    *("cluster.mode=cluster", "cluster.device=cpu", "model.experts=64", "model.layers=4"),
    *("train.global_batch_size=256", "parallel.micro_batch_size=64"),
)
CPUS = [node(9, CPU=2.0), attention(1), attention(2), expert(3), expert(4)]
H100 = {"accelerator_type:H100": 1.0}
GPUS = [attention(1, GPU=8.0, CPU=64.0, **H100), expert(2, GPU=4.0, CPU=64.0)]


def config(nodes: Sequence[Node], *sets: str) -> RunConfig:
    return filled(override(TINY, [*BASE, *sets]), nodes)


@pytest.mark.parametrize(
    ("nodes", "sets", "changes"),
    [
        (CPUS, [], []),
        (CPUS, ["parallel.expert_workers=3"], ["cluster.expert.workers_per_node = 3"]),
        (
            CPUS,
            ["parallel.expert_workers=9"],
            ["parallel.expert_workers = 8", "cluster.expert.workers_per_node = 4"],
        ),
        (
            CPUS,
            ["parallel.attention_workers=8", "cluster.attention.workers_per_node=8"],
            ["cluster.attention.workers_per_node = 4"],
        ),
        (
            CPUS,
            ["parallel.rings=9"],
            [
                "parallel.rings = 8",
                "cluster.attention.workers_per_node = 4",
                "cluster.expert.workers_per_node = 4",
            ],
        ),
        (CPUS, ["parallel.schedule=ep_1f1b"], []),
        (CPUS, ["cluster.device=cuda"], []),
        (
            GPUS,
            ["cluster.device=cuda", "parallel.expert_workers=8"],
            ["parallel.expert_workers = 4"],
        ),
        (
            GPUS,
            ["cluster.device=cuda", "cluster.expert.gpus_per_node=8"],
            ["cluster.expert.gpus_per_node = 0"],
        ),
        (
            GPUS,
            ["cluster.device=cuda", "cluster.attention.accelerator=H800"],
            ['cluster.attention.accelerator = "H100"'],
        ),
        ([expert(1)], [], []),
    ],
)
def test_what_would_fit(nodes: list[Node], sets: list[str], changes: list[str]) -> None:
    assert nearest_fit(config(nodes, *sets), nodes) == changes


_NODES = st.lists(
    st.builds(
        lambda kind, cpus: (kind, cpus),
        st.sampled_from(["attention_node", "expert_node", "colocated_node"]),
        st.integers(0, 4),
    ),
    max_size=6,
)


@given(
    _NODES,
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2)),
    st.sampled_from(["af_pipe", "ep_1f1b"]),
)
@settings(max_examples=60)
def test_what_is_named_is_legal_and_fits(
    kinds: list[tuple[str, int]], counts: tuple[int, int, int, int], schedule: str
) -> None:
    nodes = [node(i + 1, **{kind: 1.0, "CPU": float(cpus)}) for i, (kind, cpus) in enumerate(kinds)]
    workers, experts, groups, rings = counts
    asked = config(
        nodes,
        f"parallel.attention_workers={workers}",
        f"parallel.expert_workers={workers if schedule == 'ep_1f1b' else experts}",
        *(f"parallel.groups={groups}", f"parallel.rings={rings}", f"parallel.schedule={schedule}"),
    )
    changes = nearest_fit(asked, nodes)
    if changes:
        fitting = override(asked, [change.replace(" = ", "=") for change in changes])
        assert all_placed(cluster_bundles(fitting), nodes, in_total)
        assert fitting.parallel.workers <= asked.parallel.workers


def test_a_large_cluster_is_searched_in_reasonable_time() -> None:
    nodes = [attention(i, GPU=8.0, CPU=96.0) for i in range(1, 257)]
    nodes += [expert(i, GPU=8.0, CPU=96.0) for i in range(257, 500)]
    asked = config(
        nodes,
        *("cluster.device=cuda", "parallel.groups=4", "model.experts=512"),
        *("parallel.attention_workers=512", "parallel.expert_workers=512"),
    )
    began_s = time.perf_counter()
    assert nearest_fit(asked, nodes) == ["parallel.expert_workers = 486"]
    assert time.perf_counter() - began_s < 5
