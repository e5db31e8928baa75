import math

import pytest
import torch

from disagmoe.runtime.counters import StepCounters
from disagmoe.runtime.parameters import SegmentKind
from disagmoe.runtime.world import Share, World
from tests.unit.runtime.tiny import context_of, tiny

WORKERS = ("A0.0", "F0.0", "F0.1")


def counters(loss: float = 0.0, choice: int = 0) -> StepCounters:
    zero = StepCounters.zero(context_of(tiny(), "A0.0"), 2)
    zero.loss_M[1] = loss
    zero.choices_LE[1, 2] = choice
    return zero


def total(*shares: Share) -> World:
    vectors = [share.encode(rank, len(WORKERS)) for rank, share in enumerate(shares)]
    return World.decode(torch.stack(vectors).sum(0), WORKERS, experts=4)


def test_every_worker_adds_its_share() -> None:
    attention, shared, experts = SegmentKind
    world = total(
        Share(
            counters=counters(1.5, 9),
            norm_squared={attention: 4.0, shared: 0.5},
            tokens=20,
            valid_targets=17,
        ),
        Share(counters=counters(), norm_squared={experts: 2.0}),
        Share(counters=counters(0.25, 1), norm_squared={experts: 1.0}, stop=True, save=True),
    )
    assert world == World(
        norm_squared=7.5,
        overflow=False,
        stop=True,
        save=True,
        tokens=20,
        valid_targets=17,
        loss=1.75,
        balance=0.0,
        z=0.0,
        nonfinite=(),
        choices_LE=((0, 0, 0, 0), (0, 0, 10, 0)),
    )
    assert world.reason_to_skip() == ""


def share(norm: float = 1.0, **fields: bool) -> Share:
    return Share(
        counters=counters(2.0),
        norm_squared={SegmentKind.ATTENTION: norm},
        valid_targets=5,
        **fields,
    )


def test_those_with_gradients_that_are_not_finite_are_named_and_no_others() -> None:
    # the sum over replicas spreads what is not finite to F0.1, which is not to blame
    world = total(share(), share(math.nan, nonfinite=True), share(math.nan))
    assert world.nonfinite == ("F0.0",)
    assert world.norm_squared == 1.0
    assert world.reason_to_skip() == "gradients of F0.0 are not finite"


@pytest.mark.parametrize("norm", [math.inf, math.nan])
def test_a_sum_that_overflows_skips_the_step(norm: float) -> None:
    world = total(share(), share(norm), share())
    assert world.nonfinite == ()
    assert world.reason_to_skip() == "sums of finite gradients are not finite"


@pytest.mark.parametrize("loss", [math.inf, -math.inf, math.nan])
def test_a_loss_that_is_not_finite_skips_the_step(loss: float) -> None:
    bad = Share(counters=counters(loss), valid_targets=5)
    assert total(bad, share(), share()).reason_to_skip() == f"the loss is {loss}"


def test_nothing_to_learn_from_skips_the_step() -> None:
    none = Share(counters=counters())
    assert total(none, none, none).reason_to_skip() == "no valid target in the whole batch"
