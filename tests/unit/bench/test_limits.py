"""Lower bounds of a step by hand."""

from dataclasses import replace

import pytest

from disagmoe.bench.limits import Load, floor_s, lower_bound_s, pauses, rate_mbit_for, wire_s
from disagmoe.bench.scenarios import AF_PIPE, EP_1F1B, EP_OVERLAP
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Layout

LOAD = Load(ops_s=(1.9, 2.8), rest_s=(0.1, 0.2), link_bytes=50e6)
COSTS = OpCosts(embed=0, attn_fwd=1, experts_fwd=1, head=0, experts_bwd=2, attn_bwd=2, embed_bwd=0)


def spec(*, colocated: bool, micro_batches: int = 4) -> ProgramSpec:
    workers = 2 if colocated else 1
    layout = Layout(
        layers=2, attention_workers=workers, expert_workers=workers, colocated=colocated
    )
    return ProgramSpec(layout=layout, micro_batches=micro_batches, training=True)


def test_wire_time_is_bits_over_rate() -> None:
    assert wire_s(LOAD, rate_mbit=200) == pytest.approx(2.0)


def test_what_an_idle_link_gives_for_nothing_takes_no_time() -> None:
    assert wire_s(replace(LOAD, free_bytes=10e6), rate_mbit=200) == pytest.approx(1.6)
    assert wire_s(replace(LOAD, free_bytes=90e6), rate_mbit=200) == 0


@pytest.mark.parametrize(
    ("system", "rate_mbit", "bound_s"),
    [
        (EP_1F1B, 200, 5.0),
        (EP_OVERLAP, 200, 3.0),
        (AF_PIPE, 200, 3.0),
        (EP_1F1B, 100, 7.0),
        (EP_OVERLAP, 100, 4.0),
        (AF_PIPE, 100, 4.0),
    ],
)
def test_only_plain_expert_parallelism_adds_the_wire_to_compute(
    system: str, rate_mbit: float, bound_s: float
) -> None:
    assert floor_s(LOAD, rate_mbit, exposed=system == EP_1F1B) == pytest.approx(bound_s)


def test_nothing_overlaps_in_plain_expert_parallelism() -> None:
    bound_s = lower_bound_s(spec(colocated=True), COSTS, LOAD, 200, exposed=True)
    assert bound_s == pytest.approx(2.8 + 0.2 + 2.0)


def test_the_split_fills_and_drains_around_the_link() -> None:
    """8 transfers of 0.5 s each way; attention has 1.9 s for 4 x 2 x 3 units, experts 2.8 s."""
    attention, transfer = 1.9 / 24, 4.0 / 16
    filled = attention + 16 * transfer + 2 * (2.8 / 24) + transfer + 2 * attention
    bound_s = lower_bound_s(spec(colocated=False), COSTS, LOAD, 100, exposed=False)
    assert bound_s == pytest.approx(filled + 0.2)


@pytest.mark.parametrize("system", [AF_PIPE, EP_1F1B, EP_OVERLAP])
@pytest.mark.parametrize("rate_mbit", [20.0, 100.0, 1e5])
def test_a_bound_is_never_below_the_floor(system: str, rate_mbit: float) -> None:
    programs, exposed = spec(colocated=system != AF_PIPE), system == EP_1F1B
    bound_s = lower_bound_s(programs, COSTS, LOAD, rate_mbit, exposed=exposed)
    assert bound_s >= floor_s(LOAD, rate_mbit, exposed=exposed)


def test_the_slowest_host_bounds_a_colocated_layout() -> None:
    bound_s = lower_bound_s(spec(colocated=True), COSTS, LOAD, 1e9, exposed=False)
    assert bound_s == pytest.approx(3.0, rel=1e-3)


def test_a_link_rests_before_each_exposed_exchange() -> None:
    assert pauses(spec(colocated=True), exposed=True) == 4 * 2 * 4
    assert pauses(spec(colocated=True), exposed=False) == 0
    assert pauses(spec(colocated=False), exposed=False) == 0


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_the_rate_for_a_share_gives_that_share(share: float) -> None:
    rate_mbit = rate_mbit_for(LOAD, share)
    transfer_s = wire_s(LOAD, rate_mbit)
    assert transfer_s / floor_s(LOAD, rate_mbit, exposed=True) == pytest.approx(share)
