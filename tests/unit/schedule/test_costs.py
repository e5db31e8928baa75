import pytest

from disagmoe.errors import ScheduleError
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import COMPUTE_OPS, Op, SlotKind


def test_every_compute_op_and_payload_has_a_cost():
    costs = OpCosts(attn_fwd=3.0, drows=7.0)
    assert {op: costs.compute(op) for op in COMPUTE_OPS}[Op.ATTN_FWD] == 3.0
    assert costs.compute(Op.REDUCE_COUNTS) == 0.0
    kinds = ("rows", "outputs", "residual", "doutputs", "drows", "dresidual")
    assert [costs.transfer(SlotKind(kind)) for kind in kinds] == [0.5, 0.5, 0.25, 0.5, 7.0, 0.25]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_costs_that_time_cannot_have_are_refused(value):
    with pytest.raises(ScheduleError, match=f"cost of rows is {value}; use a finite number >= 0"):
        OpCosts(rows=value)
