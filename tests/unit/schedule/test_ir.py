import pytest

from disagmoe.errors import ScheduleError
from disagmoe.schedule.ir import (
    COMPUTE_OPS,
    STEP_OPS,
    SUMMING_OPS,
    TRANSFER_OPS,
    Compute,
    GroupProgram,
    Op,
    Program,
    ProgramSet,
    ProgramSpec,
    StepEnd,
    Transfer,
    effects,
    owner,
    payload,
)
from disagmoe.schedule.layout import Channel, Group, Layout
from disagmoe.schedule.text import parse_instruction

A0 = Group.parse("A0")


def spec(layers=3, groups=1, micro_batches=2, colocated=False, fused=False, **kwargs):
    layout = Layout(
        layers=layers,
        groups=groups,
        direct_residual=groups > 1 and not fused,
        fused_residual=fused,
        colocated=colocated,
    )
    return ProgramSpec(layout=layout, micro_batches=micro_batches, **kwargs)


def touched(line, group="A0", **kwargs):
    """Reads and writes of an instruction as text."""
    found = effects(parse_instruction(line), Group.parse(group), spec(**kwargs))
    return " ".join(map(str, found.reads)), " ".join(map(str, found.writes))


def test_every_op_is_of_one_kind():
    kinds = [COMPUTE_OPS, TRANSFER_OPS, set(STEP_OPS), {Op.FREE}]
    assert sum(map(len, kinds)) == len(Op) == len(frozenset().union(*kinds))
    assert SUMMING_OPS < COMPUTE_OPS


@pytest.mark.parametrize(
    ("line", "reads", "writes"),
    [
        ("embed m1", "", "A.hidden L0 m1"),
        ("attn_fwd L0 m1", "A.hidden L0 m1", "A.rows L0 m1 A.residual L0 m1 A.saved L0 m1"),
        (
            "attn_fwd L2 m1",
            "A.outputs L1 m1 A.residual L1 m1",
            "A.rows L2 m1 A.residual L2 m1 A.saved L2 m1",
        ),
        ("experts_fwd L2 m0", "F.rows L2 m0", "F.outputs L2 m0 F.saved L2 m0"),
        ("head m0", "A.outputs L2 m0 A.residual L2 m0", "A.doutputs L2 m0 A.dresidual L2 m0"),
        ("head_eval m0", "A.outputs L2 m0 A.residual L2 m0", ""),
        ("experts_bwd L2 m0", "F.doutputs L2 m0 F.saved L2 m0", "F.drows L2 m0"),
        (
            "experts_dgrad L2 m0",
            "F.doutputs L2 m0 F.saved L2 m0",
            "F.drows L2 m0 F.dsaved L2 m0",
        ),
        ("experts_wgrad L2 m0", "F.saved L2 m0 F.dsaved L2 m0", ""),
        (
            "attn_bwd L2 m0",
            "A.drows L2 m0 A.dresidual L2 m0 A.saved L2 m0",
            "A.doutputs L1 m0 A.dresidual L1 m0",
        ),
        ("attn_bwd L0 m0", "A.drows L0 m0 A.dresidual L0 m0 A.saved L0 m0", "A.dhidden L0 m0"),
        ("embed_bwd m0", "A.dhidden L0 m0", ""),
        ("free A.saved L0 m0", "", ""),
        ("update", "", ""),
    ],
)
def test_what_ops_read_and_write(line, reads, writes):
    assert touched(line) == (reads, writes)


def test_an_evaluation_saves_nothing():
    assert touched("attn_fwd L0 m0", training=False) == (
        "A.hidden L0 m0",
        "A.rows L0 m0 A.residual L0 m0",
    )
    assert touched("experts_fwd L0 m0", training=False) == ("F.rows L0 m0", "F.outputs L0 m0")


def test_summed_counts_reach_the_backward():
    assert touched("reduce_counts L1 m0", reduce_counts=True) == ("A.saved L1 m0", "A.counts L1 m0")
    reads, _ = touched("attn_bwd L1 m0", reduce_counts=True)
    assert reads == "A.drows L1 m0 A.dresidual L1 m0 A.saved L1 m0 A.counts L1 m0"
    assert not spec(reduce_counts=True, training=False).sums_counts
    reads, _ = touched("attn_bwd L1 m1", reduce_counts=True, counts_of_step=True)
    assert reads == ("A.drows L1 m1 A.dresidual L1 m1 A.saved L1 m1 A.counts L1 m0 A.counts L1 m1")
    with pytest.raises(ScheduleError, match="counts_of_step needs reduce_counts"):
        spec(counts_of_step=True)


@pytest.mark.parametrize(
    ("line", "reads", "writes"),
    [
        ("attn_fwd L0 m0", "A.hidden L0 m0", "A.rows L0 m0 A.saved L0 m0"),
        ("attn_fwd L1 m0", "A.outputs L0 m0", "A.rows L1 m0 A.saved L1 m0"),
        ("head m0", "A.outputs L2 m0", "A.doutputs L2 m0"),
        ("head_eval m0", "A.outputs L2 m0", ""),
        ("attn_bwd L1 m0", "A.drows L1 m0 A.saved L1 m0", "A.doutputs L0 m0"),
        ("attn_bwd L0 m0", "A.drows L0 m0 A.saved L0 m0", "A.dhidden L0 m0"),
    ],
)
def test_a_fused_residual_has_no_slots_of_its_own(line, reads, writes):
    assert touched(line, groups=2, fused=True) == (reads, writes)


@pytest.mark.parametrize("op", ["send_counts", "post_send", "wait"])
def test_a_sender_needs_its_slot_until_the_wait(op):
    assert touched(f"{op} A0>F0.act L1 m0") == ("A.rows L1 m0", "")


@pytest.mark.parametrize(
    ("op", "writes"), [("recv_counts", ""), ("post_recv", ""), ("wait", "F.rows L1 m0")]
)
def test_a_receiver_has_its_slot_after_the_wait(op, writes):
    assert touched(f"{op} A0>F0.act L1 m0", group="F0") == ("", writes)


@pytest.mark.parametrize(
    ("op", "writes"), [("exchange_counts", ""), ("exchange", ""), ("wait", "F.rows L1 m0")]
)
def test_an_all_to_all_needs_what_it_sends_until_the_wait_that_brings_what_it_receives(op, writes):
    line = f"{op} A0>F0.act L1 m0"
    assert touched(line, group="C0", colocated=True) == ("A.rows L1 m0", writes)


def test_colocated_groups_are_the_ends_of_the_channels_of_their_roles():
    line, ends = "wait F0>A1.act L0 m0", {"colocated": True, "groups": 2}
    assert touched(line, group="C0", **ends) == ("F.outputs L0 m0", "")
    assert touched(line, group="C1", **ends) == ("", "A.outputs L0 m0")


def test_a_payload_has_a_slot_at_each_end():
    key = parse_instruction("wait A1>A0.grad L4 m2").key
    assert (str(key.sent), str(key.received)) == ("A.dresidual L4 m2", "A.dresidual L4 m2")
    key = parse_instruction("wait A1>F0.grad L4 m2").key
    assert (str(key.sent), str(key.received)) == ("A.doutputs L4 m2", "F.doutputs L4 m2")


@pytest.mark.parametrize(
    ("channel", "kind", "one_group", "two_groups"),
    [
        ("A0>F0.act", "rows", True, True),
        ("F0>A0.act", "outputs", False, True),
        ("A0>A1.act", "residual", False, False),
        ("A0>F0.grad", "doutputs", False, False),
        ("F0>A0.grad", "drows", False, False),
        ("A1>A0.grad", "dresidual", False, False),
    ],
)
def test_channels_carry_one_payload_each(channel, kind, one_group, two_groups):
    parsed = Channel.parse(channel)
    assert str(payload(parsed)) == kind
    for colocated in (False, True):
        assert spec(groups=1, colocated=colocated).sends_counts(parsed) == one_group
        assert spec(groups=2, colocated=colocated).sends_counts(parsed) == two_groups


def test_expert_groups_do_not_talk():
    with pytest.raises(ScheduleError, match=r"F0>F1\.act: expert groups do not talk to each other"):
        payload(Channel.parse("F0>F1.act"))


def test_owners():
    layout = spec(layers=3, groups=2).layout
    lines = ["embed m0", "attn_fwd L1 m0", "experts_bwd L2 m0", "head m0", "reduce_counts L1 m0"]
    computes = [parse_instruction(line) for line in lines]
    assert [str(owner(compute, layout)) for compute in computes] == ["A0", "A1", "F0", "A1", "A1"]


def test_ill_formed_instructions_are_refused():
    channel = Channel.parse("A0>F0.act")
    with pytest.raises(ScheduleError, match="wait is no compute op"):
        Compute(Op.WAIT, 0, 0)
    with pytest.raises(ScheduleError, match="attn_fwd needs layer"):
        Compute(Op.ATTN_FWD, None, 0)
    with pytest.raises(ScheduleError, match="head has no layer"):
        Compute(Op.HEAD, 0, 0)
    with pytest.raises(ScheduleError, match="embed is no transfer op"):
        Transfer(Op.EMBED, channel, 0, 0)
    with pytest.raises(ScheduleError, match="free does not end a step"):
        StepEnd(Op.FREE)
    with pytest.raises(ScheduleError, match="0 micro-batches; use 1 or more"):
        spec(micro_batches=0)


def test_a_set_knows_its_programs():
    program = Program(A0, ())
    programs = ProgramSet(spec(), (program,))
    assert programs.of(A0) is program
    assert programs.part(A0) == GroupProgram(spec(), program)
    with pytest.raises(ScheduleError, match="no program for F7; there are A0"):
        programs.of(Group.parse("F7"))
