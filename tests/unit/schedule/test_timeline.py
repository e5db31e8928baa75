import pytest

from disagmoe.errors import ScheduleError
from disagmoe.schedule.chain import chain
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import Op, ProgramSpec
from disagmoe.schedule.layout import Group, Layout
from disagmoe.schedule.timeline import simulate

A0, F0 = Group.parse("A0"), Group.parse("F0")
ONES = OpCosts(**dict.fromkeys(OpCosts.__dataclass_fields__, 1.0))


def spec(layers=1, groups=1, micro_batches=1, **kwargs):
    layout = Layout(layers=layers, groups=groups, direct_residual=groups > 1)
    return ProgramSpec(layout=layout, micro_batches=micro_batches, **kwargs)


def oldest_first(compute):
    return (compute.mb,)


def listing(spec, in_flight=1, costs=ONES):
    timeline = simulate(spec, costs, oldest_first, in_flight)
    spans = [f"{span.start:g}-{span.end:g} {span.group} {span.compute}" for span in timeline.spans]
    hops = [f"{hop.ready:g} {hop.start:g}-{hop.end:g} {hop.key}" for hop in timeline.hops]
    return spans, hops


def test_one_micro_batch_walks_the_chain_with_every_transfer_exposed():
    spans, hops = listing(spec())
    assert spans == [
        "0-1 A0 embed m0",
        "1-2 A0 attn_fwd L0 m0",
        "3-4 F0 experts_fwd L0 m0",
        "5-6 A0 head m0",
        "7-8 F0 experts_bwd L0 m0",
        "9-10 A0 attn_bwd L0 m0",
        "10-11 A0 embed_bwd m0",
    ]
    assert hops == [
        "2 2-3 A0>F0.act L0 m0",
        "4 4-5 F0>A0.act L0 m0",
        "6 6-7 A0>F0.grad L0 m0",
        "8 8-9 F0>A0.grad L0 m0",
    ]


def test_two_micro_batches_in_flight_overlap():
    timeline = simulate(spec(micro_batches=2), ONES, oldest_first, 2)
    assert timeline.makespan == 13
    assert (timeline.busy(A0), timeline.busy(F0)) == (10, 4)
    assert simulate(spec(micro_batches=2), ONES, oldest_first, 1).makespan == 22


def test_a_residual_holds_up_only_who_reads_it():
    """The experts start when their rows are there, though the residual is still on the wire."""
    slow = OpCosts(
        **{**dict.fromkeys(OpCosts.__dataclass_fields__, 1.0), "residual": 10.0, "dresidual": 10.0}
    )
    spans, hops = listing(spec(layers=2, groups=2), costs=slow)
    assert "3-4 F0 experts_fwd L0 m0" in spans
    assert "2 3-13 A0>A1.act L0 m0" in hops
    assert "13-14 A1 attn_fwd L1 m0" not in spans  # its outputs wait for the way in of A1
    assert "14-15 A1 attn_fwd L1 m0" in spans


def test_sums_meet_the_micro_batches_in_order_whatever_the_policy_wants():
    def youngest_first(compute):
        return (-compute.mb,)

    for training, op in ((True, Op.HEAD), (False, Op.HEAD_EVAL)):
        four = spec(micro_batches=4, training=training)
        timeline = simulate(four, ONES, youngest_first, 4)
        assert [s.compute.mb for s in timeline.spans if s.compute.op is op] == [0, 1, 2, 3]


def test_a_policy_may_rank_ops_alike():
    timeline = simulate(spec(micro_batches=3), ONES, lambda compute: (0,), 3)
    assert len(timeline.spans) == 3 * 7


def test_work_that_takes_no_time_is_legal():
    free = OpCosts(**dict.fromkeys(OpCosts.__dataclass_fields__, 0.0))
    assert simulate(spec(layers=2, groups=2, micro_batches=2), free, oldest_first, 2).makespan == 0


def test_the_chain_of_an_evaluation_ends_with_its_head():
    steps = chain(spec(layers=2, training=False), 5)
    assert [str(step.compute) for step in steps] == [
        "embed m5", "attn_fwd L0 m5", "experts_fwd L0 m5", "attn_fwd L1 m5", "experts_fwd L1 m5",
        "head_eval m5",
    ]  # fmt: skip
    sends = [f"{send.key} -> {send.reader}" for step in steps for send in step.sends]
    assert sends == [
        "A0>F0.act L0 m5 -> experts_fwd L0 m5",
        "F0>A0.act L0 m5 -> attn_fwd L1 m5",
        "A0>F0.act L1 m5 -> experts_fwd L1 m5",
        "F0>A0.act L1 m5 -> head_eval m5",
    ]


def test_nothing_in_flight_is_refused():
    with pytest.raises(ScheduleError, match="0 micro-batches in flight; use 1 or more"):
        simulate(spec(), ONES, oldest_first, 0)


def test_a_transfer_whose_receiver_is_busy_holds_up_nothing_that_goes_elsewhere():
    """The way in of A1 is taken by the slow residual of the first micro-batch; the rows of the
    second leave A0 all the same."""
    slow = OpCosts(
        **{**dict.fromkeys(OpCosts.__dataclass_fields__, 1.0), "residual": 4.0, "outputs": 9.0}
    )
    timeline = simulate(spec(layers=2, groups=2, micro_batches=2), slow, oldest_first, 2)
    hops = {str(hop.key): hop for hop in timeline.hops}
    late = hops["F0>A1.act L0 m0"]
    assert (late.ready, late.start, late.landing, late.end) == (4, 4, 7, 16)
    assert hops["A0>F0.act L0 m1"].start == 7


def test_counts_of_a_whole_step_need_all_micro_batches_in_flight():
    gathering = spec(micro_batches=3, reduce_counts=True, counts_of_step=True)
    message = "counts of a whole step need all 3 micro-batches in flight, and 2 may be"
    with pytest.raises(ScheduleError, match=message):
        simulate(gathering, ONES, oldest_first, 2)
    timeline = simulate(gathering, ONES, oldest_first, 3)
    done = [(s.compute.op, s.end, s.start) for s in timeline.spans if s.group == A0]
    routed = max(end for op, end, _ in done if op is Op.ATTN_FWD)
    assert all(start >= routed for op, _, start in done if op is Op.ATTN_BWD)
