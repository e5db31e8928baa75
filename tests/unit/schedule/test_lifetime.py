from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Group, Layout
from disagmoe.schedule.passes.lifetime import add_frees, peak_slots
from disagmoe.schedule.text import parse_instruction

F0 = Group.parse("F0")
SPEC = ProgramSpec(layout=Layout(layers=1), micro_batches=2)

BEFORE = """\
recv_counts A0>F0.act L0 m0
post_recv A0>F0.act L0 m0
wait A0>F0.act L0 m0
experts_fwd L0 m0
post_send F0>A0.act L0 m0
wait F0>A0.act L0 m0
post_recv A0>F0.grad L0 m0
wait A0>F0.grad L0 m0
experts_bwd L0 m0"""

AFTER = """\
recv_counts A0>F0.act L0 m0
post_recv A0>F0.act L0 m0
wait A0>F0.act L0 m0
experts_fwd L0 m0
free F.rows L0 m0
post_send F0>A0.act L0 m0
wait F0>A0.act L0 m0
free F.outputs L0 m0
post_recv A0>F0.grad L0 m0
wait A0>F0.grad L0 m0
experts_bwd L0 m0
free F.saved L0 m0
free F.doutputs L0 m0
free F.drows L0 m0"""


def parse(text):
    return [parse_instruction(line) for line in text.splitlines()]


def test_slots_are_freed_after_their_last_use_and_a_sent_one_after_its_wait():
    assert "\n".join(map(str, add_frees(parse(BEFORE), F0, SPEC))) == AFTER


def test_the_peak_counts_what_is_alive_at_once():
    assert peak_slots(parse(AFTER), F0, SPEC) == 3


def test_a_receive_holds_memory_from_its_post_on():
    posted = "post_recv A0>F0.act L0 m0\npost_recv A0>F0.act L0 m1"
    assert peak_slots(parse(posted), F0, SPEC) == 2
    assert peak_slots(parse(f"{posted}\nwait A0>F0.act L0 m0"), F0, SPEC) == 2


def test_an_all_to_all_frees_what_it_sent_after_its_wait_and_holds_both_ends_until_then():
    spec = ProgramSpec(layout=Layout(layers=1, colocated=True), micro_batches=1, training=False)
    c0 = Group.parse("C0")
    before = """\
embed m0
attn_fwd L0 m0
exchange_counts A0>F0.act L0 m0
exchange A0>F0.act L0 m0
wait A0>F0.act L0 m0
experts_fwd L0 m0
exchange F0>A0.act L0 m0
wait F0>A0.act L0 m0
head_eval m0"""
    after = add_frees(parse(before), c0, spec)
    assert (
        "\n".join(map(str, after))
        == """\
embed m0
attn_fwd L0 m0
free A.hidden L0 m0
exchange_counts A0>F0.act L0 m0
exchange A0>F0.act L0 m0
wait A0>F0.act L0 m0
free A.rows L0 m0
experts_fwd L0 m0
free F.rows L0 m0
exchange F0>A0.act L0 m0
wait F0>A0.act L0 m0
free F.outputs L0 m0
head_eval m0
free A.residual L0 m0
free A.outputs L0 m0"""
    )
    assert peak_slots(after, c0, spec) == 3  # residual, and rows or outputs at both ends
    assert peak_slots(parse("exchange F0>A0.act L0 m0"), c0, spec) == 1


def test_an_empty_program_holds_nothing():
    assert add_frees([], F0, SPEC) == []
    assert peak_slots([], F0, SPEC) == 0
