"""Bytes and messages on each channel, counted by hand for a tiny network."""

import pytest

from disagmoe.config.run import RunConfig
from disagmoe.runtime.channels import WORLD
from disagmoe.runtime.report import HopCounts
from tests.unit.runtime.tiny import batch_of, threads, tiny

HIDDEN, LAYERS, MICRO_BATCHES = 8, 2, 2
TOKENS = 20  # of a step; each has top_k = 2 experts of 4
PAIRS = 2 * TOKENS
FP64, INT32, UINT8 = 8, 4, 1
HEADER = 4 * 8
ROW = HIDDEN * FP64
COUNTED = ("A0>F0.act.counts", "F0>A1.act.counts", "A1>F1.act.counts", "F1>A0.act.counts")


def sent(config: RunConfig) -> dict[str, tuple[int, int]]:
    """Messages and bytes of a step by channel, of all workers; without the world."""
    total: dict[str, tuple[int, int]] = {}
    with threads(config, [batch_of(config)]) as run:
        for report in run.each(lambda runtime: runtime.run_step(0)).values():
            for name, one in report.traffic.items():
                messages, nbytes = total.get(name, (0, 0))
                total[name] = (messages + one.messages, nbytes + one.nbytes)
    assert total.pop(WORLD)[0] > 0
    return total


def hops(config: RunConfig) -> dict[str, HopCounts]:
    """Rows and bytes of a step by hop, of all workers."""
    with threads(config, [batch_of(config)]) as run:
        found = [one.hops for one in run.each(lambda runtime: runtime.run_step(0)).values()]
    return {hop: sum((one[hop] for one in found[1:]), found[0][hop]) for hop in found[0]}


def test_every_token_goes_to_the_only_expert_worker_and_back_once_per_layer() -> None:
    transfers = LAYERS * MICRO_BATCHES
    assert sent(tiny()) == {
        "A0>F0.act.counts": (transfers, transfers * HEADER),
        "A0>F0.act": (transfers, LAYERS * (TOKENS * ROW + PAIRS * (FP64 + 2 * INT32))),
        "F0>A0.act": (transfers, LAYERS * TOKENS * ROW),
        "A0>F0.grad": (transfers, LAYERS * TOKENS * ROW),
        "F0>A0.grad": (transfers, LAYERS * (TOKENS * ROW + PAIRS * FP64)),
    }


def test_rows_go_once_to_each_expert_worker_not_once_per_expert() -> None:
    """With all four experts chosen, two workers: `none` sends every choice."""
    nbytes = {}
    for dedupe in ("rank", "none"):
        config = tiny(parallel__dedupe=dedupe, model__top_k=4, parallel__expert_workers=2)
        nbytes[dedupe] = sent(config)["A0>F0.grad"][1]
    assert nbytes == {"rank": LAYERS * 2 * TOKENS * ROW, "none": LAYERS * 4 * TOKENS * ROW}


def test_rows_go_once_to_each_host_and_on_from_there() -> None:
    """All four experts chosen, one on each of four workers, two on a host. Half of the rows that go
    on inside a host are for their gateway's own expert, and no message."""
    config = tiny(
        parallel__dedupe="node",
        parallel__workers_per_host=2,
        parallel__attention_workers=2,
        parallel__expert_workers=4,
        model__top_k=4,
    )
    found = sent(config)
    network, inside = LAYERS * 2 * TOKENS * ROW, LAYERS * 4 * TOKENS * ROW // 2
    assert found["A0>F0.grad"][1] == found["F0>A0.act"][1] == network
    assert found["F0>F0.fan_grad"][1] == found["F0>F0.sum"][1] == inside
    gates = LAYERS * 4 * TOKENS * FP64
    assert found["F0>A0.grad"][1] == network + gates
    assert found["F0>F0.sum_grad"][1] == inside + gates // 2
    # four attention and expert workers with a message for two others, or one, each way
    transfers = LAYERS * MICRO_BATCHES
    assert found["A0>F0.act"][0] == found["F0>A0.act"][0] == 4 * transfers
    assert found["F0>F0.fan"][0] == 4 * transfers


def test_rows_are_counted_by_hop_as_routing_asks_for_them() -> None:
    """All four experts chosen, as above; rows for oneself count as rows, not as bytes."""
    sizes = {"parallel__attention_workers": 2, "parallel__expert_workers": 4, "model__top_k": 4}
    node = {"parallel__dedupe": "node", "parallel__workers_per_host": 2}
    for more, copies in (
        ({}, {"inter": 4}),
        ({"parallel__dedupe": "none"}, {"inter": 4}),
        (node, {"inter": 2, "intra": 4}),
    ):
        config = tiny(**sizes, **more)
        found, channels = hops(config), sent(config)
        assert found.keys() == copies.keys()
        for hop, one in found.items():
            rows = copies[hop] * LAYERS * TOKENS
            payloads = [name for name in channels if not name.endswith(".counts")]
            inside = [name for name in payloads if name.startswith("F0>F0.")]
            carried = inside if hop == "intra" else set(payloads) - set(inside)
            nbytes = sum(channels[name][1] for name in carried if ">" in name)
            assert one == HopCounts(rows=rows, exact_rows=rows, nbytes=nbytes)


@pytest.mark.parametrize("schedule", ["af_pipe", "ep_1f1b"])
def test_rows_are_fewer_where_a_token_has_two_experts_on_a_host(schedule: str) -> None:
    config = tiny(
        parallel__dedupe="node",
        parallel__workers_per_host=2,
        parallel__attention_workers=4,
        parallel__expert_workers=4,
        parallel__schedule=schedule,
    )
    found = hops(config)
    assert all(one.rows == one.exact_rows for one in found.values())
    assert LAYERS * TOKENS < found["inter"].rows < found["intra"].rows == LAYERS * PAIRS


def test_a_direct_residual_costs_a_row_per_token_each_way_and_a_fused_one_next_to_nothing() -> None:
    """Two groups of one layer each. Fused, a row carries one byte more (whether this is its home),
    after 8 of padding per message, and the norm's weight is summed and gathered on both sides."""
    direct, fused = (
        sent(tiny(parallel__groups=2, parallel__residual=f'"{residual}"'))
        for residual in ("direct", "fused")
    )
    residual = (MICRO_BATCHES, TOKENS * ROW)
    norm = (2 * 2, 2 * HIDDEN * FP64)
    rows = TOKENS * ROW + PAIRS * (FP64 + 2 * INT32) + TOKENS * INT32
    outputs = TOKENS * ROW + TOKENS * INT32
    expected = {
        **dict.fromkeys(COUNTED, (MICRO_BATCHES, MICRO_BATCHES * HEADER)),
        **dict.fromkeys(("A0>F0.act", "A1>F1.act"), (MICRO_BATCHES, rows)),
        **dict.fromkeys(("F0>A1.act", "F1>A0.act"), (MICRO_BATCHES, outputs)),
        **dict.fromkeys(("A1>F0.grad", "A0>F1.grad"), (MICRO_BATCHES, TOKENS * ROW)),
        **dict.fromkeys(("F0>A0.grad", "F1>A1.grad"), (MICRO_BATCHES, TOKENS * ROW + PAIRS * FP64)),
    }
    assert direct == {
        **expected,
        **dict.fromkeys(("A0>A1.act", "A1>A0.act", "A1>A0.grad", "A0>A1.grad"), residual),
    }
    homes = MICRO_BATCHES * 8 + TOKENS * UINT8
    assert fused == {
        **expected,
        **dict.fromkeys(("A0>F0.act", "A1>F1.act"), (MICRO_BATCHES, rows + homes)),
        **dict.fromkeys(("shared0.replicas", "shared1.replicas"), norm),
    }
