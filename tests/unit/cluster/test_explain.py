"""What is said when workers have no place."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from disagmoe.cluster.bundles import Bundle, cluster_bundles, filled
from disagmoe.cluster.explain import busy, infeasible, timed_out
from disagmoe.cluster.nodes import Holder, Node
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from tests.unit.cluster.clusters import attention, expert, node

ROOT = Path(__file__).resolve().parents[3]
HEAD = node(9, CPU=2.0)


def asked(nodes: Sequence[Node], *sets: str) -> tuple[Bundle, ...]:
    loaded = RunConfig.load(ROOT / "configs/tiny.toml")
    few = ("cluster.mode=cluster", "cluster.device=cpu", "parallel.micro_batch_size=1")
    return cluster_bundles(filled(override(loaded, [*few, *sets]), nodes))


def test_too_few_nodes_with_what_each_has_and_what_to_do() -> None:
    nodes = [HEAD, attention(1), expert(2), expert(3)]
    wanted = asked(nodes, "parallel.expert_workers=3")
    assert infeasible(wanted, nodes, ["parallel.expert_workers = 2"]) == (
        "this cluster cannot hold the run: it has 1 of 1 nodes for attention and 2 of 3 nodes for "
        "experts. Asked, one node each:\n"
        "  1 x attention_node 1, CPU 1 (A0.0)\n"
        "  3 x expert_node 1, CPU 1 (F0.0; F0.1; F0.2)\n"
        "Nodes have, in use or not:\n"
        "  10.0.0.9 (node 99999999): CPU 2; offers no attention_node and no expert_node\n"
        "  10.0.0.1 (node 11111111): CPU 4, attention_node 1; takes attention\n"
        "  10.0.0.2 (node 22222222), 10.0.0.3 (node 33333333): CPU 4, expert_node 1; takes "
        "experts\n"
        "the nearest config that fits has parallel.expert_workers = 2; or start 1 more node with "
        "`ray start --address HEAD:6379 --resources '{\"expert_node\": 1}'`; if they have yet to "
        "join, wait for them: --set cluster.wait_s=600"
    )


GPUS = ("cluster.device=cuda", "cluster.attention.accelerator=H800")


@pytest.mark.parametrize(
    ("nodes", "sets", "line"),
    [
        (
            [attention(1, CPU=1.0), expert(2)],
            ["parallel.attention_workers=2", "cluster.attention.workers_per_node=2"],
            "  10.0.0.1 (node 11111111): CPU 1, attention_node 1; has too little: CPU 1 of 2 for "
            "attention",
        ),
        (
            [attention(1), expert(2)],
            ["cluster.device=cuda"],
            "  10.0.0.2 (node 22222222): CPU 4, expert_node 1; has too little: GPU 0 of 1 for "
            "experts",
        ),
        (
            [attention(1, GPU=8.0, **{"accelerator_type:H100": 1.0}), expert(2, GPU=8.0)],
            GPUS,
            "  10.0.0.1 (node 11111111): CPU 4, GPU 8, attention_node 1, accelerator H100; has too "
            "little: accelerator H100 instead of H800 for attention",
        ),
        (
            [attention(1, GPU=8.0), expert(2, GPU=8.0)],
            GPUS,
            "  10.0.0.1 (node 11111111): CPU 4, GPU 8, attention_node 1; has too little: "
            "accelerator none that Ray knows instead of H800 for attention",
        ),
        (
            [node(1, attention_node=1.0, expert_node=1.0, CPU=4.0)],
            [],
            "  10.0.0.1 (node 11111111): CPU 4, attention_node 1, expert_node 1; takes attention "
            "or experts",
        ),
        (
            [attention(1), expert(2)],
            ["parallel.schedule=ep_1f1b"],
            "  10.0.0.1 (node 11111111): CPU 4, attention_node 1; offers no colocated_node",
        ),
    ],
)
def test_what_a_node_lacks(nodes: list[Node], sets: Sequence[str], line: str) -> None:
    assert line in infeasible(asked(nodes, *sets), nodes, []).splitlines()


def test_nodes_are_missing_that_have_a_label() -> None:
    nodes = [attention(1), expert(2)]
    lines = infeasible(asked(nodes, "cluster.expert.label=pool=b"), nodes, []).splitlines()
    assert lines[2] == "  1 x label pool=b, CPU 1 (F0.0)"
    assert lines[-2].endswith("expert_node 1; offers no attention_node and no label pool=b")
    assert lines[-1] == (
        "start 1 more node with `ray start --address HEAD:6379 --labels pool=b`; if they have yet "
        "to join, wait for them: --set cluster.wait_s=600"
    )


def test_without_a_fit_or_a_missing_role_the_advice_is_to_ask_for_less() -> None:
    nodes = [attention(1), expert(2)]
    text = infeasible(asked(nodes, "cluster.device=cuda"), nodes, [])
    assert text.endswith("\nask for less per node, or start nodes that have it")


def test_this_machine_may_have_too_little() -> None:
    here = node(1)
    bundle = Bundle(side=None, workers=("A0.0", "F0.0"), cpus=1.0, node=here.id)
    assert infeasible([bundle], [here, expert(2)], []) == (
        "this cluster cannot hold the run: this machine has too little for its workers. Asked, one "
        "node each:\n"
        "  1 x CPU 1 (A0.0 F0.0)\n"
        "Nodes have, in use or not:\n"
        "  10.0.0.1 (node 11111111): nothing; has too little: CPU 0 of 1 for all workers\n"
        "  10.0.0.2 (node 22222222): CPU 4, expert_node 1; is another machine\n"
        'give Ray more of this machine, or use cluster.mode = "cluster"'
    )


def test_nodes_that_are_alike_take_one_line() -> None:
    nodes = [*(attention(i) for i in range(1, 65)), expert(65)]
    text = infeasible(asked(nodes, "parallel.expert_workers=2"), nodes, [])
    assert (
        "  10.0.0.1 (node 11111111), 10.0.0.2 (node 22222222), 10.0.0.3 (node 33333333), 10.0.0.4 "
        "(node 44444444) and 60 more: CPU 4, attention_node 1; takes attention" in text.splitlines()
    )


def test_lists_have_an_end() -> None:
    nodes = [attention(i, CPU=float(i)) for i in range(1, 41)]
    wanted = asked(nodes, "parallel.attention_workers=48", "parallel.micro_batch_size=1")
    lines = infeasible(wanted, nodes, []).splitlines()
    assert "  48 x attention_node 1, CPU 1 (A0.0; A0.1; A0.2; A0.3; and 44 more)" in lines
    assert "  and 16 other kinds of nodes" in lines
    assert len(lines) == 30


def test_many_workers_on_a_node_are_a_range() -> None:
    nodes = [attention(1, CPU=8.0), expert(2)]
    sets = ("parallel.attention_workers=8", "cluster.attention.workers_per_node=8")
    text = infeasible(asked(nodes, *sets), nodes, [])
    assert "  1 x attention_node 1, CPU 8 (A0.0 to A0.7)" in text.splitlines()


def test_who_holds_what() -> None:
    nodes = [attention(1, free={"CPU": 3.0}), attention(2), expert(3, free={"expert_node": 1.0})]
    wanted = asked(nodes, "parallel.attention_workers=2")
    holders = {nodes[0].id: [Holder("disagmoe-other-1a2b", {"attention_node": 1.0, "CPU": 1.0})]}
    assert busy(wanted, nodes, holders) == (
        "nodes for this run are in use: free are 1 of 2 nodes for attention and 0 of 1 nodes for "
        "experts. Asked, one node each:\n"
        "  2 x attention_node 1, CPU 1 (A0.0; A0.1)\n"
        "  1 x expert_node 1, CPU 1 (F0.0)\n"
        "In use:\n"
        "  10.0.0.1 (node 11111111): CPU 3 of 4 free, attention_node 0 of 1 free; held by "
        "disagmoe-other-1a2b (CPU 1, attention_node 1)\n"
        "  10.0.0.3 (node 33333333): CPU 0 of 4 free, expert_node 1 of 1 free; held by actors or "
        "tasks of others"
    )


def test_free_nodes_that_ray_does_not_give() -> None:
    nodes = [attention(1), expert(2)]
    assert timed_out(asked(nodes), 31.4) == (
        "Ray has not given the nodes of this run within 31 s, although they seem to be free; its "
        "log gcs_server.out on the head may say why. Asked, one node each:\n"
        "  1 x attention_node 1, CPU 1 (A0.0)\n"
        "  1 x expert_node 1, CPU 1 (F0.0)"
    )
