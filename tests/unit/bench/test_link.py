"""What is said of edges, beside the plan."""

import pytest

from disagmoe.actors.messages import Place
from disagmoe.bench.link import Edges, judged
from disagmoe.runtime.edges import EdgeRate
from tests.unit.costs.scenarios import pair

NIC, NVLINK = 43e9, 155e9
PLACES = {
    "A0.0": Place(node="n0", host="10.0.0.1", cpus=1),
    "A0.1": Place(node="n0", host="10.0.0.1", cpus=1),
    "F0.0": Place(node="n1", host="10.0.0.2", cpus=1),
}


def rate(source: str, target: str, bytes_per_s: float) -> EdgeRate:
    return EdgeRate(
        channel="A0>F0.act", source=source, target=target, bytes_per_s=bytes_per_s, message_s=2e-5
    )


def test_edges_are_compared_with_cards_or_nvlink() -> None:
    scenario = pair("qwen3-235b-a22b", "hardware.expert_nics=0.5")
    rates = [rate("A0.0", "F0.0", 20e9), rate("A0.1", "F0.0", 18e9), rate("A0.0", "A0.1", 150e9)]
    edges = list(judged(rates, PLACES, scenario))
    assert [edge.near for edge in edges] == [False, False, True]
    assumed = [edge.assumed_bytes_per_s for edge in edges]
    assert assumed == pytest.approx([NIC / 2, NIC / 2, NVLINK], rel=0.01)
    assert [edge.is_slow for edge in edges] == [False, True, False]


def test_a_channel_is_a_line_and_a_warning_names_its_slowest_edge() -> None:
    rates = [rate("A0.0", "F0.0", 20e9), rate("A0.1", "F0.0", 44e9)]
    found = Edges("nccl", tuple(judged(rates, PLACES, pair("qwen3-235b-a22b"))))
    head, line, warning = found.lines()
    assert head.split() == ["channel", "edges", "median", "slowest", "per", "message", "of"]
    assert " ".join(line.split()) == "A0>F0.act 2 32 GB/s 20 GB/s 20 us A0.0 to F0.0"
    assert warning == (
        "slower than the plan assumes: 1 of 2 edges of A0>F0.act, such as A0.0 on 10.0.0.1 to F0.0 "
        "on 10.0.0.2 (two nodes): 20 GB/s, assumed 43 GB/s"
    )


def test_nothing_is_slow_where_the_plan_knows_no_rates() -> None:
    found = Edges("gloo", tuple(judged([rate("A0.0", "F0.0", 1.0)], PLACES, None)))
    assert found.slow == ()
    assert found.to_dict() == {
        "ok": True,
        "transport": "gloo",
        "slow": 0,
        "edges": [
            {
                "channel": "A0>F0.act",
                "source": "A0.0",
                "target": "F0.0",
                "bytes_per_s": 1.0,
                "message_s": 2e-5,
                "source_host": "10.0.0.1",
                "target_host": "10.0.0.2",
                "near": False,
                "assumed_bytes_per_s": None,
                "slow": False,
            }
        ],
    }
