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


def test_measured_seconds_round_trip():
    measured = {name: at / 7 for at, name in enumerate(OpCosts().to_dict())}
    costs = OpCosts.from_seconds(measured)
    assert costs.to_dict() == measured
    assert OpCosts(**costs.to_dict()) == costs


def test_what_was_not_measured_keeps_its_proportion():
    costs = OpCosts.from_seconds({"attn_fwd": 0.01, "experts_fwd": 0.03})
    assert costs == OpCosts(
        **{name: 0.02 * cost for name, cost in OpCosts().to_dict().items()}
        | {"attn_fwd": 0.01, "experts_fwd": 0.03}
    )


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        ({}, "no measurement; costs are those of embed, attn_fwd"),
        ({"attn": 1.0, "rows": 1.0}, "no op or transfer: attn; costs are those of embed"),
        ({"embed": 1.0, "rows": -0.5}, "cost of rows is -0.5; use a finite number"),
    ],
)
def test_bad_measurements_are_refused(seconds, message):
    with pytest.raises(ScheduleError, match=message):
        OpCosts.from_seconds(seconds)
