"""A split backward changes when gradients are computed, and not one bit of them."""

import pytest
import torch

from disagmoe.schedule.from_config import programs_for
from tests.unit.runtime.tiny import (
    Seen,
    assert_equals_reference,
    batch_of,
    one_step,
    reference,
    tiny,
)


def assert_same_bits(one: Seen, other: Seen) -> None:
    for values in ("grads", "values"):
        for worker, tensors in getattr(one, values).items():
            others = getattr(other, values)[worker]
            assert tensors.keys() == others.keys()
            assert [name for name in tensors if not torch.equal(tensors[name], others[name])] == []
    assert one.report.loss == other.report.loss
    assert one.report.grad_norm == other.report.grad_norm


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize(
    "sets",
    [
        {"parallel__in_flight": 3},
        {"parallel__attention_workers": 2, "parallel__expert_workers": 3},
        {"parallel__groups": 2, "parallel__residual": "direct"},
        {"parallel__groups": 2, "parallel__residual": "fused", "parallel__expert_workers": 2},
        {"parallel__schedule": "ep_overlap", "parallel__groups": 2},
        {"parallel__schedule": "ep_1f1b"},
        {"parallel__schedule": "serial"},
    ],
)
def test_the_bits_of_a_step_stay(sets: dict[str, object], precision: str) -> None:
    sets = {**sets, "train__global_batch_size": 6, "train__precision": precision}
    whole, split = tiny(**sets), tiny(**sets, parallel__split_backward=True)
    batch = batch_of(whole)
    seen = one_step(split, batch)
    assert_same_bits(seen, one_step(whole, batch))
    if precision == "fp64":
        assert_equals_reference(seen, reference(split, batch))


def test_the_programs_have_both_parts() -> None:
    spec = programs_for(tiny(parallel__split_backward=True)).spec
    assert spec.split_backward
    names = {
        str(one).split()[0]
        for program in programs_for(tiny(parallel__split_backward=True)).compile().programs.programs
        for one in program.instructions
    }
    assert {"experts_dgrad", "experts_wgrad"} <= names
    assert "experts_bwd" not in names
