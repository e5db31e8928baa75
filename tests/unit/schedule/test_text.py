from dataclasses import replace

import pytest

from disagmoe.errors import ScheduleError
from disagmoe.schedule.ir import Program, ProgramSpec
from disagmoe.schedule.layout import Group, Layout
from disagmoe.schedule.text import parse_instruction, read_program, read_programs, write_program

TEXT = """\
disagmoe-sched 4
group F0
layers 1
groups 1
attention_workers 2
expert_workers 3
fused_residual 0
colocated 0
rings 1
workers_per_host 0
micro_batches 1
training 1
reduce_counts 0
split_backward 0

recv_counts A0>F0.act L0 m0
post_recv A0>F0.act L0 m0
wait A0>F0.act L0 m0
experts_fwd L0 m0
free F.rows L0 m0
update
"""


def test_a_program_is_one_line_per_instruction():
    program, spec = read_program(TEXT)
    assert program.group == Group.parse("F0")
    layout = Layout(layers=1, attention_workers=2, expert_workers=3)
    assert spec == ProgramSpec(layout=layout, micro_batches=1)
    assert list(map(str, program.instructions)) == TEXT.splitlines()[15:]
    assert write_program(program, spec) == TEXT


def test_programs_come_in_the_order_of_groups():
    spec = ProgramSpec(layout=Layout(layers=1), micro_batches=1)
    programs = [Program(Group.parse(name), ()) for name in ("F0", "A0")]
    read = read_programs([write_program(program, spec) for program in programs])
    assert [str(program.group) for program in read.programs] == ["A0", "F0"]
    assert read.spec == spec


@pytest.mark.parametrize(
    "layout",
    [
        Layout(layers=3, groups=2, direct_residual=True),
        Layout(layers=3, groups=2, fused_residual=True),
        Layout(layers=3, groups=2, attention_workers=2, expert_workers=2, direct_residual=True,
               colocated=True),
        Layout(layers=1, rings=3),
    ],
)  # fmt: skip
def test_the_header_says_which_layout_the_programs_are_for(layout):
    spec = ProgramSpec(layout=layout, micro_batches=5, training=False, reduce_counts=True)
    for one in (spec, replace(spec, counts_of_step=True)):
        texts = [write_program(Program(group, ()), one) for group in layout.all_groups]
        assert read_programs(texts).spec == one


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("disagmoe-sched 4", "disagmoe-sched 1", "line 1: expected 'disagmoe-sched 4', found"),
        ("layers 1\n", "", "line 3: expected 'layers VALUE', found 'groups 1'"),
        ("layers 1", "layers", "line 3: expected 'layers VALUE', found 'layers'"),
        ("layers 1", "layers one", "line 3: layers must be a number, found 'one'"),
        ("layers 1", "layers \u0663", "line 3: layers must be a number"),
        ("group F0", "group X", "line 2: 'X' is no group"),
        ("training 1", "training 2", "line 12: training must be 0 or 1, found '2'"),
        (
            "reduce_counts 0",
            "reduce_counts 3",
            "line 13: reduce_counts must be 0, 1 or 2, found '3'",
        ),
        ("expert_workers 3", "expert_workers 0", "header: 0 expert_workers; use 1 or more"),
        (
            "fused_residual 0",
            "fused_residual 2",
            "line 7: fused_residual must be 0 or 1, found '2'",
        ),
        ("fused_residual 0", "fused_residual 1", "header: the residual is local for one group"),
        ("colocated 0", "colocated yes", "line 8: colocated must be 0 or 1, found 'yes'"),
        ("colocated 0", "colocated 1", "header: 2 attention and 3 expert workers cannot be the"),
        ("rings 1", "rings 0", "header: 0 rings; use 1 or more"),
        ("micro_batches 1", "micro_batches 0", "header: 0 micro-batches"),
        ("\n\n", "\n", "line 15: expected an empty line after the header"),
        ("experts_fwd L0 m0", "experts_fwd m0", "line 19: experts_fwd needs layer"),
        ("update", "upgrade", "line 21: unknown instruction 'upgrade'; known: embed, attn_fwd"),
        ("update", "", "line 21: unknown instruction ''"),
        ("wait A0>F0.act", "wait A0>F0", "line 18: 'A0>F0' is no channel"),
    ],
)
def test_errors_name_the_line(old, new, message):
    with pytest.raises(ScheduleError, match=message):
        read_program(TEXT.replace(old, new, 1))


def test_an_empty_file_is_refused():
    with pytest.raises(ScheduleError, match="line 1: expected 'disagmoe-sched 4', found an empty"):
        read_program("")


@pytest.mark.parametrize(
    "line",
    ["update now", "attn_fwd L01 m0", "embed m00", "embed  m0", "embed m0 ", "free A.rows m0",
     "free A.row L0 m0", "free rows L0 m0", "free C.rows L0 m0", "exchange A0>F0.act m0",
     "wait A0>F0.act L0", "attn_fwd L0 m\u0663", "attn_fwd L0"],
)  # fmt: skip
def test_there_is_one_spelling(line):
    with pytest.raises(ScheduleError, match="cannot read '"):
        parse_instruction(line)


def test_programs_must_be_of_one_set():
    program, spec = read_program(TEXT)
    text = write_program(program, spec)
    with pytest.raises(ScheduleError, match="no programs"):
        read_programs([])
    with pytest.raises(ScheduleError, match="compiled for different layouts"):
        read_programs([text, text.replace("micro_batches 1", "micro_batches 2")])
    with pytest.raises(ScheduleError, match=r"one program for each of A0 F0, found F0$"):
        read_programs([text])
    with pytest.raises(ScheduleError, match="one program for each of A0 F0, found F0 F0"):
        read_programs([text, text])
