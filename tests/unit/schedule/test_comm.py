"""Transfers are added to the order of compute: listings before and after the pass."""

from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Group, Layout
from disagmoe.schedule.passes.comm import WINDOW, add_transfers, parts
from disagmoe.schedule.timeline import simulate

ONES = dict.fromkeys(OpCosts.__dataclass_fields__, 1.0)


def listing(group, spec, in_flight=1, *, exposed=False, **costs):
    timeline = simulate(
        spec, OpCosts(**{**ONES, **costs}), lambda c: (c.mb,), in_flight, exposed_exchanges=exposed
    )
    before = [str(span.compute) for span in timeline.spans if str(span.group) == group]
    here = Group.parse(group)
    part = parts(timeline, spec)[here]
    return before, list(map(str, add_transfers(part, here, spec, exposed_exchanges=exposed)))


def spec(layers=1, groups=1, micro_batches=1, colocated=False, **kwargs):
    layout = Layout(layers=layers, groups=groups, direct_residual=groups > 1, colocated=colocated)
    return ProgramSpec(layout=layout, micro_batches=micro_batches, **kwargs)


def test_attention_sends_at_once_and_waits_for_what_it_reads():
    before, after = listing("A0", spec())
    assert before == ["embed m0", "attn_fwd L0 m0", "head m0", "attn_bwd L0 m0", "embed_bwd m0"]
    assert after == [
        "embed m0",
        "attn_fwd L0 m0",
        "send_counts A0>F0.act L0 m0",
        "post_send A0>F0.act L0 m0",
        "post_recv F0>A0.act L0 m0",
        "wait F0>A0.act L0 m0",
        "head m0",
        "post_send A0>F0.grad L0 m0",
        "post_recv F0>A0.grad L0 m0",
        "wait F0>A0.grad L0 m0",
        "attn_bwd L0 m0",
        "embed_bwd m0",
        "wait A0>F0.act L0 m0",
        "wait A0>F0.grad L0 m0",
    ]


def test_a_send_is_waited_for_just_before_the_window_of_its_channel_is_exceeded():
    _, after = listing("F0", spec(micro_batches=WINDOW + 2, training=False), in_flight=3)
    sends = [line for line in after if "F0>A0.act" in line]
    assert sends == [
        *(f"post_send F0>A0.act L0 m{mb}" for mb in range(WINDOW)),
        "wait F0>A0.act L0 m0",
        f"post_send F0>A0.act L0 m{WINDOW}",
        "wait F0>A0.act L0 m1",
        f"post_send F0>A0.act L0 m{WINDOW + 1}",
        *(f"wait F0>A0.act L0 m{mb}" for mb in range(2, WINDOW + 2)),
    ]


def test_the_window_counts_payloads_with_their_counts():
    _, after = listing("A0", spec(micro_batches=WINDOW + 1, training=False), in_flight=3)
    at = after.index("wait A0>F0.act L0 m0")
    assert after[at + 1 : at + 3] == [
        f"send_counts A0>F0.act L0 m{WINDOW}",
        f"post_send A0>F0.act L0 m{WINDOW}",
    ]


def test_an_all_to_all_is_waited_for_just_before_its_reader():
    before, after = listing(
        "C0", spec(micro_batches=2, training=False, colocated=True), in_flight=2
    )
    assert before == [
        "embed m0", "attn_fwd L0 m0", "embed m1", "experts_fwd L0 m0", "attn_fwd L0 m1",
        "head_eval m0", "experts_fwd L0 m1", "head_eval m1",
    ]  # fmt: skip
    assert after == [
        "embed m0",
        "attn_fwd L0 m0",
        "exchange_counts A0>F0.act L0 m0",
        "exchange A0>F0.act L0 m0",
        "embed m1",
        "wait A0>F0.act L0 m0",
        "experts_fwd L0 m0",
        "exchange F0>A0.act L0 m0",
        "attn_fwd L0 m1",
        "exchange_counts A0>F0.act L0 m1",
        "exchange A0>F0.act L0 m1",
        "wait F0>A0.act L0 m0",
        "head_eval m0",
        "wait A0>F0.act L0 m1",
        "experts_fwd L0 m1",
        "exchange F0>A0.act L0 m1",
        "wait F0>A0.act L0 m1",
        "head_eval m1",
    ]


def test_nothing_is_computed_behind_an_exposed_all_to_all():
    """On a ring of two, where another micro-batch could go first: its wait comes before any op,
    though the reader may be a later one."""
    ring = spec(layers=4, groups=2, micro_batches=4, colocated=True)
    behind = {}
    for exposed in (False, True):
        _, after = listing("C0", ring, in_flight=4, exposed=exposed)
        behind[exposed] = under_way = 0
        for line in after:
            op, channel = (*line.split(), "")[:2]
            inside = channel in ("A0>F0.act", "F0>A0.grad")
            under_way += (op == "exchange") - (op == "wait" and inside)
            behind[exposed] += under_way > 0 and op.endswith(("fwd", "bwd", "embed", "head"))
    assert behind[False] > 0
    assert behind[True] == 0


def test_hosts_of_a_ring_exchange_inside_and_send_to_the_next():
    _, after = listing("C1", spec(layers=2, groups=2, training=False, colocated=True))
    assert after == [
        "post_recv A0>A1.act L0 m0",
        "recv_counts F0>A1.act L0 m0",
        "post_recv F0>A1.act L0 m0",
        "wait F0>A1.act L0 m0",
        "wait A0>A1.act L0 m0",
        "attn_fwd L1 m0",
        "exchange_counts A1>F1.act L1 m0",
        "exchange A1>F1.act L1 m0",
        "post_send A1>A0.act L1 m0",
        "wait A1>F1.act L1 m0",
        "experts_fwd L1 m0",
        "send_counts F1>A0.act L1 m0",
        "post_send F1>A0.act L1 m0",
        "wait A1>A0.act L1 m0",
        "wait F1>A0.act L1 m0",
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
        "wait F0>A1.act L0 m0",
        "wait A0>A1.act L0 m0",
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
