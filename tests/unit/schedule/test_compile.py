from typing import get_args

import pytest

from disagmoe.config.parallel import ScheduleName
from disagmoe.errors import ScheduleError
from disagmoe.schedule.compile import BUILDERS, build_programs, compile_programs
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import Compute, Op, ProgramSpec
from disagmoe.schedule.layout import Group, Layout
from disagmoe.schedule.verify import verify

SPEC = ProgramSpec(layout=Layout(layers=4), micro_batches=4)


def test_every_schedule_of_the_config_has_a_builder():
    assert tuple(BUILDERS) == get_args(ScheduleName)


def test_an_unknown_schedule_is_refused():
    with pytest.raises(
        ScheduleError, match="unknown schedule '1f1b'; known: af_pipe, ep_1f1b, ep_overlap"
    ):
        compile_programs(SPEC, schedule="1f1b", in_flight=1)


def test_programs_come_in_the_order_of_groups_and_verified():
    compiled = compile_programs(SPEC, schedule="af_pipe", in_flight=2)
    assert [str(program.group) for program in compiled.programs.programs] == ["A0", "F0"]
    assert build_programs(SPEC, schedule="af_pipe", in_flight=2) == compiled
    verify(compiled.programs)


def test_serial_finishes_a_micro_batch_before_it_takes_the_next():
    a0 = build_programs(SPEC, schedule="serial", in_flight=4).programs.of(Group.parse("A0"))
    order = [x.mb for x in a0.instructions if isinstance(x, Compute)]
    assert order == sorted(order)


def test_af_pipe_has_several_micro_batches_in_flight_and_gains_from_it():
    serial = build_programs(SPEC, schedule="serial", in_flight=1).timeline.makespan
    pipe = build_programs(SPEC, schedule="af_pipe", in_flight=2)
    a0 = pipe.programs.of(Group.parse("A0"))
    order = [str(x) for x in a0.instructions if isinstance(x, Compute)]
    assert order.index("embed m1") < order.index("attn_fwd L1 m0")
    assert pipe.timeline.makespan < 0.7 * serial


def test_af_pipe_takes_backward_first_then_the_oldest():
    spec = ProgramSpec(layout=Layout(layers=1), micro_batches=3)
    slow_experts = OpCosts(experts_fwd=0.1, experts_bwd=0.1, rows=0.1, outputs=0.1, head=0.1)
    compiled = build_programs(spec, schedule="af_pipe", in_flight=3, costs=slow_experts)
    ops = [s.compute for s in compiled.timeline.spans if s.compute.op in (Op.HEAD, Op.ATTN_FWD)]
    # the head of micro-batch 0 is ready while attention of 2 waits, and goes first
    assert list(map(str, ops[:3])) == ["attn_fwd L0 m0", "attn_fwd L0 m1", "head m0"]
