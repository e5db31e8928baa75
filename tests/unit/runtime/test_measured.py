"""A step's trace as a chart: lanes, shades and figures."""

import itertools
from collections.abc import Sequence

import pytest

from disagmoe.errors import ConfigError, ScheduleError
from disagmoe.runtime.clock import Span
from disagmoe.runtime.measured import measured_chart, one_step
from disagmoe.runtime.trace import Hop, WorkerTrace
from disagmoe.schedule.accounting import Kind, Shares
from disagmoe.schedule.bars import Bar, Shade
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.from_config import programs_for
from tests.unit.runtime.tiny import batch_of, threads, tiny


def trace(
    spans: Sequence[tuple[Kind, str, float, float]], hops: Sequence[Hop] = (), step: int = 3
) -> WorkerTrace:
    return WorkerTrace(step, tuple(Span(*span) for span in spans), tuple(hops))


REQUEST = programs_for(tiny(parallel__attention_workers=2, parallel__rings=2))


def test_spans_become_bars_by_kind_and_op() -> None:
    spans = [
        (Kind.IDLE, "", 90.0, 100.0),  # since the step before
        (Kind.DATA, "", 100.0, 101.0),
        (Kind.COMPUTE, "embed m1", 101.0, 102.0),
        (Kind.COMPUTE, "attn_fwd L1 m1", 102.0, 104.0),
        (Kind.SEND, "post_send A0>F0.act L1 m1", 104.0, 104.5),
        (Kind.IDLE, "wait F0>A0.act L1 m1", 104.5, 106.0),
        (Kind.RECV_WAIT, "wait F0>A0.act L1 m1", 106.0, 106.5),
        (Kind.COMPUTE, "head m1", 106.5, 107.0),
        (Kind.IDLE, "reduce_counts L1 m1", 107.0, 107.5),
        (Kind.CHECKPOINT, "", 107.5, 108.0),
        (Kind.OPTIMIZER, "", 108.0, 110.0),
    ]
    chart = measured_chart({"A0.0": trace(spans)}, REQUEST, "a step")
    assert chart.bars == tuple(
        Bar("A0.0", start, end, shade, mb)
        for start, end, shade, mb in (
            (0.0, 1.0, Shade.DATA, None),
            (1.0, 2.0, Shade.EMBED, 1),
            (2.0, 4.0, Shade.ATTENTION_FWD, 1),
            (4.0, 4.5, Shade.SEND, None),
            (4.5, 6.0, Shade.OTHERS, None),
            (6.0, 6.5, Shade.NETWORK, None),
            (6.5, 7.0, Shade.HEAD, 1),
            (7.0, 7.5, Shade.OTHERS, None),
            (7.5, 8.0, Shade.OTHERS, None),
            (8.0, 10.0, Shade.OPTIMIZER, None),
        )
    )
    assert (chart.makespan, chart.workers, chart.channels) == (10.0, ("A0.0",), ())
    # of all 20 s, those before the step included, as metrics.jsonl has it
    assert chart.shares == Shares(utilisation=6.5 / 20, exposed_communication=1 / 20, bubble=0.625)


def test_a_transfer_is_one_bar_however_many_receive_it_and_waits_for_the_one_before() -> None:
    work = [(Kind.COMPUTE, "experts_fwd L0 m0", 100.0, 110.0)]
    chart = measured_chart(
        {
            "F0.0": trace(
                work,
                [
                    Hop("A0>F0.act", "L0 m0", False, 8, 101.0, 103.0),
                    Hop("A0>F0.act", "L0 m1", False, 8, 102.0, 106.0),
                    Hop("F0>A0.grad", "L0 m0", True, 8, 101.0, 109.0),
                ],
            ),
            "F0.1": trace(work, [Hop("A0>F0.act", "L0 m0", False, 8, 100.0, 104.0)]),
            "r1.F0.0": trace(work, [Hop("A0>F0.act", "L0 m0", False, 8, 103.0, 105.0)]),
            "r1.A0.0": trace(work, [Hop("F0>A0.grad", "L0 m2", False, 8, 103.0, 105.0)]),
        },
        REQUEST,
        "a step",
    )
    assert [bar for bar in chart.bars if bar.lane not in chart.workers] == [
        Bar("A0>F0.act", 0.0, 4.0, Shade.ACTIVATIONS, 0),
        Bar("r1.A0>F0.act", 3.0, 5.0, Shade.ACTIVATIONS, 0),
        Bar("r1.F0>A0.grad", 3.0, 5.0, Shade.GRADIENTS, 2),
        Bar("A0>F0.act", 4.0, 6.0, Shade.ACTIVATIONS, 1),
    ]
    assert chart.workers == ("F0.0", "F0.1", "r1.F0.0", "r1.A0.0")
    assert chart.channels == ("A0>F0.act", "r1.A0>F0.act", "r1.F0>A0.grad")


def test_the_bound_is_that_of_the_ops_as_long_as_they_were() -> None:
    traces = {
        "A0.0": trace([(Kind.COMPUTE, "attn_fwd L0 m0", 0.0, 2.0)]),
        "A0.1": trace([(Kind.COMPUTE, "attn_fwd L0 m0", 0.0, 3.0)]),
        "F0.0": trace([(Kind.COMPUTE, "experts_fwd L0 m0", 3.0, 4.0)]),
    }
    costs = OpCosts.from_seconds({"attn_fwd": 3.0, "experts_fwd": 1.0})
    assert measured_chart(traces, REQUEST, "").bound == REQUEST.build(costs).bound


def test_a_step_without_ops_has_no_bound() -> None:
    with pytest.raises(ScheduleError, match="no measurement"):
        measured_chart({"A0.0": trace([(Kind.IDLE, "", 0.0, 1.0)])}, REQUEST, "")


def test_steps_are_found_by_number_and_the_last_one_without() -> None:
    workers = {name: [trace([], step=step) for step in (3, 4)] for name in ("A0.0", "F0.0")}
    assert {name: one.step for name, one in one_step(workers, 3).items()} == {"A0.0": 3, "F0.0": 3}
    assert {one.step for one in one_step(workers, None).values()} == {4}
    with pytest.raises(ConfigError, match=r"step 5 is not traced; traced steps.*: 3, 4"):
        one_step(workers, 5)
    with pytest.raises(ConfigError, match=r"step 0 is not traced; traced steps.*: none"):
        one_step({}, None)


def test_a_real_step_fills_its_lanes_and_has_the_shares_of_its_report() -> None:
    config = tiny(
        parallel__attention_workers=2,
        parallel__groups=2,
        trace__first_step=1,
        trace__steps=1,
    )
    with threads(config, [batch_of(config)] * 2) as run:
        run.each(lambda runtime: runtime.run_step(0))
        reports = run.each(lambda runtime: runtime.run_step(1))
    traces = {str(worker): r.trace for worker, r in reports.items() if r.trace is not None}
    chart = measured_chart(traces, programs_for(config), "a step")
    assert chart.workers == tuple(map(str, reports))
    assert len(chart.channels) == 8
    for worker, report in reports.items():
        bars = [bar for bar in chart.bars if bar.lane == str(worker)]
        assert all(a.end == pytest.approx(b.start, abs=1e-9) for a, b in itertools.pairwise(bars))
        measured = Shares.of(chart.seconds[str(worker)])
        reported = Shares.of(report.seconds)
        assert measured.utilisation == pytest.approx(reported.utilisation, abs=1e-6)
        assert measured.bubble == pytest.approx(reported.bubble, abs=1e-6)
    for channel in chart.channels:
        bars = [bar for bar in chart.bars if bar.lane == channel]
        assert 0 < len(bars) <= 2
        assert all(a.end <= b.start for a, b in itertools.pairwise(bars))
