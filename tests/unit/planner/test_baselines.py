"""Opponents by hand, and in the order that their papers have."""

from dataclasses import replace

import pytest

from disagmoe.costs.times import StepTimes
from disagmoe.planner.baselines import opponents
from tests.unit.costs.scenarios import pair


def step(length=4096, stages=4, micro_batches=64, calibration="h800-paperfit", **more):
    what = pair(
        "qwen3-235b-a22b",
        f"hardware.calibration={calibration}",
        length=length,
        groups=stages,
        schedule="ep_1f1b",
        dedupe="none",
        residual="direct" if stages > 1 else "local",
        **more,
    )
    times = StepTimes(replace(what, overlaps=True))  # whole transfers
    return times, opponents(times, micro_batches)


def test_megatron_by_hand():
    times, found = step(stages=1, micro_batches=3)
    costs = times.op_costs()
    per_layer = costs.attn_fwd + costs.experts_fwd + costs.attn_bwd + costs.experts_bwd
    network = costs.rows + 3 * costs.drows  # gradients of rows are as large as outputs
    whole = 3 * (94 * (per_layer + network) + costs.head)
    assert found["megatron"].seconds == pytest.approx(whole)
    assert found["megatron"].exposed == pytest.approx(3 * 94 * network)


@pytest.mark.parametrize("calibration", ["h800-kernel", "h800-paperfit"])
@pytest.mark.parametrize("length", [4096, 32768])
def test_more_overlap_is_faster_and_nothing_beats_the_work(calibration, length):
    times, found = step(length=length, calibration=calibration)
    costs = times.op_costs()
    compute = costs.attn_fwd + costs.experts_fwd + costs.attn_bwd + costs.experts_bwd
    assert found["tutel"].seconds <= found["megatron"].seconds
    assert found["overlapped"].seconds <= found["megatron"].seconds
    assert found["dualpipe"].seconds <= found["megatron"].seconds
    for one in found.values():
        assert one.seconds >= 64 * 94 / 4 * compute
        assert 0 <= one.exposed < one.seconds


def test_a_pipeline_has_to_be_filled():
    (_, few), (_, many) = step(micro_batches=8), step(micro_batches=64)
    for name in ("megatron", "tutel", "comet", "overlapped"):
        assert 8 * few[name].seconds > many[name].seconds
