"""What is said of a Ray cluster: token, nodes, and whether a run fits."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from disagmoe.cluster.bundles import filled
from disagmoe.cluster.nodes import Holder, Node
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from disagmoe.doctor.cluster import role_findings, run_finding, token_finding
from tests.unit.cluster.clusters import attention, expert, node

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("environ", "level", "found"),
    [
        ({}, "ok", "none; fine for a Ray that asks for none; mode not set"),
        (
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "secret"},
            "ok",
            "from RAY_AUTH_TOKEN; mode token",
        ),
        (
            {"RAY_AUTH_MODE": "token"},
            "problem",
            "RAY_AUTH_MODE = token, but neither RAY_AUTH_TOKEN nor HOME/.ray/auth_token has one",
        ),
        (
            {"RAY_AUTH_TOKEN_PATH": "/nowhere"},
            "problem",
            "RAY_AUTH_TOKEN_PATH = /nowhere is no file",
        ),
    ],
)
def test_token(environ: dict[str, str], level: str, found: str, tmp_path: Path) -> None:
    finding = token_finding(environ, tmp_path)
    assert (finding.level, finding.found) == (level, found.replace("HOME", str(tmp_path)))
    assert "secret" not in finding.found
    assert bool(finding.advice) == (level == "problem")


def test_a_token_in_its_usual_place(tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    file = tmp_path / ".ray/auth_token"
    file.write_text("secret")
    assert token_finding({}, tmp_path).found == f"from {file}; mode not set"


def test_nodes_of_both_kinds() -> None:
    nodes = [node(9, CPU=2.0), attention(1, free={"CPU": 3.0}), expert(2)]
    assert [(finding.level, finding.found) for finding in role_findings(nodes)] == [
        ("ok", "3 nodes: 1 for attention, 1 for experts, 1 for neither"),
        ("ok", "10.0.0.9: CPU 2 of 2 free"),
        ("ok", "10.0.0.1: CPU 3 of 4 free, attention_node 0 of 1 free"),
        ("ok", "10.0.0.2: CPU 4 of 4 free, expert_node 1 of 1 free"),
    ]


@pytest.mark.parametrize("nodes", [[node(9, CPU=2.0)], [attention(1)], [expert(1), node(2)]])
def test_nodes_of_one_kind_are_too_little(nodes: list[Node]) -> None:
    first = next(iter(role_findings(nodes)))
    assert first.level == "note"
    assert first.advice == (
        'cluster.mode = "cluster" needs nodes of both kinds: `ray start --resources '
        "'{\"attention_node\": 1}'` on some, expert_node on others"
    )


def test_nodes_for_colocated_workers_do_alone() -> None:
    first = next(iter(role_findings([node(1, colocated_node=1.0)])))
    assert (first.level, first.found) == ("ok", "1 node: 1 for attention with experts")


@pytest.mark.parametrize(
    ("nodes", "level", "first", "advice"),
    [
        ([attention(1), expert(2)], "ok", "fits, on 2 nodes", ""),
        (
            [attention(1), expert(2, free={"CPU": 4.0})],
            "note",
            "nodes for this run are in use: free are 1 of 1 nodes for attention and 0 of 1 nodes "
            "for experts. Asked, one node each:",
            "end what holds them, or wait for them: --set cluster.wait_s=3600",
        ),
        (
            [attention(1)],
            "problem",
            "this cluster cannot hold the run: it has 1 of 1 nodes for attention and 0 of 1 nodes "
            "for experts. Asked, one node each:",
            "start 1 more node with `ray start --address HEAD:6379 --resources "
            "'{\"expert_node\": 1}'`; if they have yet to join, "
            "wait for them: --set cluster.wait_s=600",
        ),
    ],
)
def test_whether_a_run_fits(nodes: Sequence[Node], level: str, first: str, advice: str) -> None:
    tiny = RunConfig.load(ROOT / "configs/tiny.toml")
    config = filled(override(tiny, ["cluster.mode=cluster", "cluster.device=cpu"]), nodes)
    holders = {nodes[-1].id: [Holder("disagmoe-other", {"expert_node": 1.0})]}
    finding = run_finding(config, nodes, holders)
    assert (finding.level, finding.found.splitlines()[0]) == (level, first)
    assert finding.advice == advice
