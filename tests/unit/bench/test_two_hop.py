"""What bytes and steps of two ways of sending come to."""

from dataclasses import replace

import pytest

from disagmoe.bench.hosts import LinkBytes
from disagmoe.bench.sample import CpuSeconds, Sample
from disagmoe.bench.tuned import Tuned
from disagmoe.bench.two_hop import LINK_BOUND, NODE, RANK, WAYS, Comparison, Measured, exact_bytes
from disagmoe.bench.two_hop_verdict import as_json, checks, table
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from disagmoe.config.starter import STARTER
from disagmoe.runtime.report import HopCounts
from disagmoe.schedule.compile import build_programs
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Layout

HIDDEN, LAYERS, TOP_K, TOKENS = 192, 4, 2, 16 * 256
CHOICES = TOKENS * LAYERS * TOP_K
BF16, FP32, INT32 = 2, 4, 4
ROWS = {NODE: TOKENS * LAYERS, RANK: 25_600}
SPEC = ProgramSpec(layout=Layout(layers=2), micro_batches=4)
TUNED = Tuned(
    micro_batch_size=1,
    costs=OpCosts(),
    compiled=build_programs(SPEC, schedule="af_pipe", in_flight=4),
)


def config(way: str) -> RunConfig:
    return override(
        STARTER,
        ["parallel.attention_workers=1", "train.precision=bf16", *WAYS[way]],
    )


def by_hand(rows: int) -> int:
    return rows * 4 * HIDDEN * BF16 + CHOICES * (2 * FP32 + 2 * INT32)


def measured(way: str, step_s: float, overhead: float = 1.001) -> Measured:
    nbytes = by_hand(ROWS[way])
    sample = Sample(
        step_s=step_s,
        loss=5.0,
        ops_s=(1.0, 0.5, 0.5),
        rest_s=(0.1, 0.1, 0.1),
        shares=(),
        links=(LinkBytes(sent=int(nbytes * overhead) - 1000, received=1000), LinkBytes(0, 0)),
        cpu=CpuSeconds(program=0.0, transport=0.0, ray=0.0, driver=0.0),
        memory_bytes={},
        hops={"inter": HopCounts(rows=ROWS[way], exact_rows=ROWS[way], nbytes=nbytes)},
    )
    return Measured(config=config(way), tuned=TUNED, samples=(sample, sample))


def comparison(node_s: float = 2.0, **ways: Measured) -> Comparison:
    usual = {RANK: measured(RANK, 3.0), NODE: measured(NODE, node_s)}
    return Comparison(rate_mbit=100.0, multiple=LINK_BOUND, ways={**usual, **ways}, pinned=True)


def failed(one: Comparison) -> list[str]:
    return [name.partition(": ")[2] for name, holds in checks([one]).items() if not holds]


def test_exact_bytes_are_those_of_four_payloads() -> None:
    assert exact_bytes(config(RANK), ROWS[RANK]) == by_hand(ROWS[RANK])
    assert exact_bytes(config(NODE), ROWS[NODE]) == by_hand(ROWS[NODE])


def test_ratios_and_what_uniform_routing_would_have() -> None:
    figures = as_json([comparison()], 2)
    assert figures["valid"]
    assert figures["speedup"] == 1.5
    assert figures["rows_ratio"] == ROWS[NODE] / ROWS[RANK]
    assert figures["rows_ratio_uniform"] == pytest.approx(1 / 1.571, abs=1e-3)
    assert figures["bytes_ratio"] == pytest.approx(figures["bytes_ratio_exact"], rel=1e-5)
    assert figures["bytes_ratio_exact"] == by_hand(ROWS[NODE]) / by_hand(ROWS[RANK])
    assert table(comparison())[0].startswith("100 Mbit/s: rows per host are 1.50 times as fast")


def test_a_comparison_is_not_valid_where_bytes_or_rows_are_others() -> None:
    assert failed(comparison()) == []
    assert failed(comparison(node_s=3.5)) == ["rows per host are faster"]
    assert failed(replace(comparison(node_s=3.5), multiple=4.0)) == []
    assert failed(replace(comparison(), pinned=False)) == ["workers pinned to their host's core"]
    assert failed(comparison(node=measured(NODE, 2.0, overhead=1.05))) == [
        "the link's bytes are in the ratio that routing asks for"
    ]
    whole = measured(NODE, 2.0)
    sample = whole.samples[0]
    hop = sample.hops["inter"]
    lost = replace(sample, hops={"inter": replace(hop, rows=hop.rows - 1)})
    assert failed(comparison(node=replace(whole, samples=(sample, lost)))) == [
        "rows sent are those that routing asks for"
    ]
    padded = replace(sample, hops={"inter": replace(hop, nbytes=int(hop.nbytes * 1.01))})
    assert failed(comparison(node=replace(whole, samples=(padded, padded)))) == [
        "payloads are as large as routing asks for"
    ]
    other = replace(sample, loss=6.0)
    assert failed(comparison(node=replace(whole, samples=(other, sample)))) == ["same losses"]
