"""What a plan waits for: the network from when something is ready, others before."""

import itertools

import pytest

from disagmoe.schedule.accounting import Shares, add_up
from disagmoe.schedule.bars import Shade
from disagmoe.schedule.compile import build_programs
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Group, Layout
from disagmoe.schedule.planned import exposed, planned_chart, planned_seconds

ONES = dict.fromkeys(OpCosts.__dataclass_fields__, 1.0)
A0, F0 = Group.parse("A0"), Group.parse("F0")


def compiled(layout, schedule="af_pipe", micro_batches=1, in_flight=1, costs=None):
    spec = ProgramSpec(layout=layout, micro_batches=micro_batches)
    return build_programs(
        spec, schedule=schedule, in_flight=in_flight, costs=OpCosts(**(costs or ONES))
    )


def test_a_lone_micro_batch_exposes_every_transfer():
    """embed 0-1, attention 1-2, rows 2-3, experts 3-4, outputs 4-5, head 5-6, and back."""
    made = compiled(Layout(layers=1))
    waits = exposed(made.programs.spec, made.timeline)
    assert waits == {A0: [(4, 5), (8, 9)], F0: [(2, 3), (6, 7)]}
    seconds = planned_seconds(made.programs.spec, made.timeline, waits)
    assert seconds == {
        "A0": {"compute": 5, "recv_wait": 2, "idle": 4},
        "F0": {"compute": 2, "recv_wait": 2, "idle": 7},
    }


def test_what_is_hidden_behind_an_op_is_not_exposed():
    """With two in flight slow experts always have the other micro-batch to work on."""
    slow = {**ONES, "experts_fwd": 3.0, "experts_bwd": 3.0}
    waits = {}
    for in_flight in (1, 2):
        made = compiled(Layout(layers=1), micro_batches=2, in_flight=in_flight, costs=slow)
        waits[in_flight] = exposed(made.programs.spec, made.timeline)[F0]
    assert waits == {1: [(2, 3), (8, 9), (17, 18), (23, 24)], 2: [(2, 3)]}


def test_exposed_exchanges_wait_although_other_work_is_there():
    made = compiled(
        Layout(layers=2, groups=2, fused_residual=True, colocated=True),
        "ep_1f1b",
        micro_batches=2,
        in_flight=2,
    )
    spec, timeline = made.programs.spec, made.timeline
    exchanges = [hop for hop in timeline.hops if spec.layout.exchanges(hop.key.channel)]
    waits = exposed(spec, timeline)
    for hop in exchanges:
        host = spec.layout.host(hop.key.channel.source)
        covered = sum(
            min(end, hop.end) - max(start, hop.ready)
            for start, end in waits[host]
            if start < hop.end and end > hop.ready
        )
        assert covered == pytest.approx(hop.end - hop.ready)


@pytest.mark.parametrize("schedule", ["af_pipe", "serial", "ep_1f1b", "ep_overlap"])
@pytest.mark.parametrize("groups", [1, 3])
def test_lanes_are_full_and_their_bars_are_the_time_by_kind(schedule, groups):
    layout = Layout(
        layers=4,
        groups=groups,
        direct_residual=groups > 1,
        colocated=schedule.startswith("ep"),
    )
    chart = planned_chart(
        compiled(layout, schedule, 5, 3, {**ONES, "experts_bwd": 2.5, "rows": 1.3}), "plan"
    )
    for lane in chart.workers:
        bars = [bar for bar in chart.bars if bar.lane == lane]
        assert (bars[0].start, bars[-1].end) == (0, pytest.approx(chart.makespan))
        for left, right in itertools.pairwise(bars):
            assert right.start == pytest.approx(left.end)
        of = {
            shade: sum(bar.end - bar.start for bar in bars if bar.shade is shade)
            for shade in (Shade.NETWORK, Shade.OTHERS)
        }
        seconds = chart.seconds[lane]
        assert of[Shade.NETWORK] == pytest.approx(seconds["recv_wait"])
        assert of[Shade.OTHERS] == pytest.approx(seconds["idle"])
        assert sum(seconds.values()) == pytest.approx(chart.makespan)
    for lane in chart.channels:
        bars = [bar for bar in chart.bars if bar.lane == lane]
        assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(bars))


def test_groups_count_by_their_workers():
    chart = planned_chart(compiled(Layout(layers=1, expert_workers=3)), "plan")
    assert chart.seconds["F0"] == {"compute": 6, "recv_wait": 6, "idle": 21}
    assert chart.shares == Shares.of(add_up(chart.seconds.values()))
    assert chart.shares.utilisation == pytest.approx((5 + 6) / (4 * 11))


def test_the_title_says_what_runs_how_long_and_what_becomes_of_the_time():
    chart = planned_chart(compiled(Layout(layers=1)), "one layer")
    assert chart.title == (
        "one layer",
        "makespan 11, lower bound 11 (chain of a micro-batch), gap 0.0 %",
        "utilisation 31.8 %, exposed communication 18.2 %, bubble 50.0 %",
    )
