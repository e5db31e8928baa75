"""Transfers are added to the order of compute: listings before and after the pass."""

from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Group, Layout
from disagmoe.schedule.passes.comm import add_transfers
from disagmoe.schedule.timeline import simulate

ONES = dict.fromkeys(OpCosts.__dataclass_fields__, 1.0)


def listing(group, spec, in_flight=1, **costs):
    timeline = simulate(spec, OpCosts(**{**ONES, **costs}), lambda c: (c.mb,), in_flight)
    before = [str(span.compute) for span in timeline.spans if str(span.group) == group]
    return before, list(map(str, add_transfers(timeline, Group.parse(group), spec)))


def spec(layers=1, groups=1, micro_batches=1, **kwargs):
    layout = Layout(layers=layers, groups=groups, direct_residual=groups > 1)
    return ProgramSpec(layout=layout, micro_batches=micro_batches, **kwargs)


def test_attention_sends_at_once_and_waits_when_it_must():
    before, after = listing("A0", spec())
    assert before == ["embed m0", "attn_fwd L0 m0", "head m0", "attn_bwd L0 m0", "embed_bwd m0"]
    assert after == [
        "embed m0",
        "attn_fwd L0 m0",
        "send_counts A0>F0.act L0 m0",
        "post_send A0>F0.act L0 m0",
        "post_recv F0>A0.act L0 m0",
        "wait A0>F0.act L0 m0",
        "wait F0>A0.act L0 m0",
        "head m0",
        "post_send A0>F0.grad L0 m0",
        "post_recv F0>A0.grad L0 m0",
        "wait A0>F0.grad L0 m0",
        "wait F0>A0.grad L0 m0",
        "attn_bwd L0 m0",
        "embed_bwd m0",
    ]


def test_experts_learn_the_counts_before_the_rows():
    before, after = listing("F0", spec(training=False))
    assert before == ["experts_fwd L0 m0"]
    assert after == [
        "recv_counts A0>F0.act L0 m0",
        "post_recv A0>F0.act L0 m0",
        "wait A0>F0.act L0 m0",
        "experts_fwd L0 m0",
        "post_send F0>A0.act L0 m0",
        "wait F0>A0.act L0 m0",
    ]


def test_the_next_group_is_told_the_counts_of_outputs_too():
    before, after = listing("A1", spec(layers=2, groups=2, training=False))
    assert before == ["attn_fwd L1 m0"]
    assert after == [
        "post_recv A0>A1.act L0 m0",
        "recv_counts F0>A1.act L0 m0",
        "post_recv F0>A1.act L0 m0",
        "wait A0>A1.act L0 m0",
        "wait F0>A1.act L0 m0",
        "attn_fwd L1 m0",
        "send_counts A1>F1.act L1 m0",
        "post_send A1>F1.act L1 m0",
        "post_send A1>A0.act L1 m0",
        "wait A1>F1.act L1 m0",
        "wait A1>A0.act L1 m0",
    ]


def test_counts_are_summed_once_the_rows_are_on_their_way():
    _, after = listing("A0", spec(reduce_counts=True))
    assert after[1:5] == [
        "attn_fwd L0 m0",
        "send_counts A0>F0.act L0 m0",
        "post_send A0>F0.act L0 m0",
        "reduce_counts L0 m0",
    ]
    _, evaluation = listing("A0", spec(reduce_counts=True, training=False))
    assert "reduce_counts L0 m0" not in evaluation


def test_a_send_follows_its_producer_even_when_that_takes_no_time():
    _, after = listing("A0", spec(), **dict.fromkeys(ONES, 0.0))
    at = after.index("attn_fwd L0 m0")
    assert after[at + 1 : at + 3] == ["send_counts A0>F0.act L0 m0", "post_send A0>F0.act L0 m0"]
