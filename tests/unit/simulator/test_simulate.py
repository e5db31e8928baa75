"""Simulated steps: by hand, against what builders planned, and against their bounds."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagmoe.costs.scenario import scenario_of
from disagmoe.costs.times import StepTimes
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.ir import Op, SlotKind
from disagmoe.simulator.chart import chart_of
from disagmoe.simulator.hops import near_beside_network
from disagmoe.simulator.report import as_json, as_text
from disagmoe.simulator.simulate import simulate
from tests.unit.costs.public_models import MODELS
from tests.unit.costs.scenarios import run

FEW = MODELS["qwen3-235b-a22b"].model_copy(update={"layers": 4})


def small(*sets, batch=32, model=FEW, **parallel):
    sizes = {"attention_workers": 4, "expert_workers": 4, "micro_batch_size": 4} | parallel
    return run(model, f"train.global_batch_size={batch}", *sets, **sizes)


def test_one_micro_batch_is_the_sum_of_its_chain():
    config = small(batch=4, schedule="serial")
    times = StepTimes(scenario_of(config, programs_for(config).spec.layout))
    slowest = times.slowest
    layer_ops = (Op.ATTN_FWD, Op.EXPERTS_FWD, Op.EXPERTS_BWD, Op.ATTN_BWD)
    kinds = (SlotKind.ROWS, SlotKind.OUTPUTS, SlotKind.DOUTPUTS, SlotKind.DROWS)
    whole = sum(slowest.compute(op, None) for op in (Op.EMBED, Op.HEAD, Op.EMBED_BWD))
    for layer in range(4):
        whole += sum(slowest.compute(op, layer) for op in layer_ops)
        whole += sum(slowest.link(kind, layer).time for kind in kinds)
    result = simulate(config)
    assert result.makespan_s == pytest.approx(whole)
    assert result.bound.time == pytest.approx(whole)
    assert result.path.total == pytest.approx(whole)
    assert result.tokens_per_s == pytest.approx(4 * 4096 / result.step_s)


@settings(deadline=None, max_examples=25)
@given(
    schedule=st.sampled_from(["af_pipe", "ep_1f1b", "ep_overlap", "serial"]),
    groups=st.integers(1, 4),
    dedupe=st.sampled_from(["rank", "none", "node"]),
    residual=st.sampled_from(["direct", "fused"]),
    batch=st.sampled_from([4, 8, 20, 32]),
    nics=st.sampled_from([0.2, 1.0, 8.0]),
    per_node=st.sampled_from([1, 2, 8]),
)
def test_no_step_beats_its_bound(schedule, groups, dedupe, residual, batch, nics, per_node):
    """The invariants are asserted inside; the critical path adds up to the makespan."""
    config = small(
        f"hardware.attention_nics={nics}",
        f"hardware.workers_per_node={per_node}",
        batch=batch,
        schedule=schedule,
        groups=groups,
        dedupe=dedupe,
        residual=residual if groups > 1 else "local",
    )
    result = simulate(config)
    assert result.gap >= 1 - 1e-9
    assert result.path.total == pytest.approx(result.makespan_s)
    for seconds in result.seconds.values():
        workers = sum(seconds.values()) / result.step_s
        assert workers == pytest.approx(round(workers))


def test_a_plan_takes_as_long_as_it_was_planned_to():
    """Where transfers keep both ways busy alike and have no latency to speak of, the simulator
    finds what the builder planned; programs post in one order, so a little may be lost."""
    config = small(batch=64, groups=2)
    request = programs_for(config)
    times = StepTimes(scenario_of(config, request.spec.layout))
    planned = request.build(times.op_costs()).timeline.makespan
    assert simulate(config).makespan_s == pytest.approx(planned, rel=0.02)


@pytest.mark.parametrize("schedule", ["af_pipe", "ep_overlap"])
def test_workers_one_by_one_take_as_long_as_groups_when_they_are_equal(schedule):
    grouped = simulate(small(schedule=schedule))
    name = "F0.1" if schedule == "af_pipe" else "C0.1"
    sets = [f"hardware.slow_worker={name}", "hardware.slow_factor=1.0000001"]
    single = simulate(small(*sets, schedule=schedule))
    assert single.makespan_s == pytest.approx(grouped.makespan_s, rel=0.02)
    assert name in single.seconds


def test_one_slow_worker_holds_up_all():
    sets = ["hardware.slow_worker=F0.1", "hardware.slow_factor=8"]
    usual, slow = simulate(small()), simulate(small(*sets))
    assert slow.makespan_s > 2 * usual.makespan_s
    assert slow.bound.name == "work of F0.1"
    assert slow.gap < 1.3


def test_skewed_experts_are_simulated_one_by_one():
    usual, skewed = simulate(small()), simulate(small("hardware.expert_skew=1.2"))
    assert skewed.makespan_s > 1.05 * usual.makespan_s
    assert len(skewed.seconds) == 8


def test_the_same_config_gives_the_same_result():
    assert as_json(simulate(small(groups=2))) == as_json(simulate(small(groups=2)))


def test_a_report_has_all_figures():
    result = simulate(small())
    found = json.loads(json.dumps(as_json(result)))
    assert found["step_s"] == pytest.approx(found["makespan_s"] + found["end_s"])
    shares = found["utilisation"] + found["exposed_communication"] + found["bubble"]
    assert shares == pytest.approx(1)
    assert [one["worker"] for one in found["memory"]] == ["A0.0", "F0.0"]
    text = as_text(result)
    assert "lower bound" in text
    assert "does not fit" not in text
    assert result.fits


def test_a_chart_has_a_bar_for_each_op_and_transfer():
    result = simulate(small(batch=8))
    chart = chart_of(result, "two")
    ops = [bar for bar in chart.bars if bar.lane in chart.workers and bar.mb is not None]
    assert len(ops) == 2 * (3 + 4 * 4)
    assert chart.channels == ("A0>F0.act", "F0>A0.act", "A0>F0.grad", "F0>A0.grad")
    for lane in (*chart.workers, *chart.channels):
        bars = sorted((bar for bar in chart.bars if bar.lane == lane), key=lambda bar: bar.start)
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(bars))


def test_the_hop_inside_hosts_goes_on_beside_the_network():
    """Serially never; with micro-batches in flight for a good part of its time."""
    two_hops = {"dedupe": "node", "batch": 64}
    alone = near_beside_network(simulate(small(schedule="serial", **two_hops)).engine)
    assert alone.busy_s > 0
    assert alone.share == 0
    result = simulate(small("parallel.in_flight=8", **two_hops))
    found = near_beside_network(result.engine)
    assert found.busy_s == pytest.approx(alone.busy_s)
    assert found.share > 0.2
    assert as_json(result)["nvlink"]["beside_network_share"] == found.share
    assert f"{100 * found.share:.0f} % of it while network cards" in as_text(result)
    assert near_beside_network(simulate(small()).engine).busy_s == 0
