import pytest

from disagmoe.errors import ScheduleError
from disagmoe.schedule.ir import (
    COMPUTE_OPS,
    STEP_OPS,
    SUMMING_OPS,
    TRANSFER_OPS,
    Compute,
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


def spec(layers=3, groups=1, micro_batches=2, **kwargs):
    layout = Layout(layers=layers, groups=groups, direct_residual=groups > 1)
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
        ("embed m1", "", "hidden L0 m1"),
        ("attn_fwd L0 m1", "hidden L0 m1", "rows L0 m1 residual L0 m1 saved L0 m1"),
        ("attn_fwd L2 m1", "outputs L1 m1 residual L1 m1", "rows L2 m1 residual L2 m1 saved L2 m1"),
        ("experts_fwd L2 m0", "rows L2 m0", "outputs L2 m0 saved L2 m0"),
        ("head m0", "outputs L2 m0 residual L2 m0", "doutputs L2 m0 dresidual L2 m0"),
        ("head_eval m0", "outputs L2 m0 residual L2 m0", ""),
        ("experts_bwd L2 m0", "doutputs L2 m0 saved L2 m0", "drows L2 m0"),
        (
            "attn_bwd L2 m0",
            "drows L2 m0 dresidual L2 m0 saved L2 m0",
            "doutputs L1 m0 dresidual L1 m0",
        ),
        ("attn_bwd L0 m0", "drows L0 m0 dresidual L0 m0 saved L0 m0", "dhidden L0 m0"),
        ("embed_bwd m0", "dhidden L0 m0", ""),
        ("free saved L0 m0", "", ""),
        ("update", "", ""),
    ],
)
def test_what_ops_read_and_write(line, reads, writes):
    assert touched(line) == (reads, writes)


def test_an_evaluation_saves_nothing():
    assert touched("attn_fwd L0 m0", training=False) == (
        "hidden L0 m0",
        "rows L0 m0 residual L0 m0",
    )
    assert touched("experts_fwd L0 m0", training=False) == ("rows L0 m0", "outputs L0 m0")


def test_summed_counts_reach_the_backward():
    assert touched("reduce_counts L1 m0", reduce_counts=True) == ("saved L1 m0", "counts L1 m0")
    reads, _ = touched("attn_bwd L1 m0", reduce_counts=True)
    assert reads == "drows L1 m0 dresidual L1 m0 saved L1 m0 counts L1 m0"
    assert not spec(reduce_counts=True, training=False).sums_counts


@pytest.mark.parametrize("op", ["send_counts", "post_send", "wait"])
def test_a_sender_needs_its_slot_until_the_wait(op):
    assert touched(f"{op} A0>F0.act L1 m0") == ("rows L1 m0", "")


@pytest.mark.parametrize(
    ("op", "writes"), [("recv_counts", ""), ("post_recv", ""), ("wait", "rows L1 m0")]
)
def test_a_receiver_has_its_slot_after_the_wait(op, writes):
    assert touched(f"{op} A0>F0.act L1 m0", group="F0") == ("", writes)


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
    assert spec(groups=1).sends_counts(parsed) == one_group
    assert spec(groups=2).sends_counts(parsed) == two_groups


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
    with pytest.raises(ScheduleError, match="no program for F7; there are A0"):
        programs.of(Group.parse("F7"))
