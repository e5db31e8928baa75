"""Lower bounds of a step by hand."""

import pytest

from disagmoe.bench.limits import Load, lower_bound_s, rate_mbit_for, wire_s
from disagmoe.bench.scenarios import AF_PIPE, EP_1F1B, EP_OVERLAP

LOAD = Load(compute_s=(2.0, 3.0), link_bytes=50e6)


def test_wire_time_is_bits_over_rate() -> None:
    assert wire_s(LOAD, rate_mbit=200) == pytest.approx(2.0)


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
    assert lower_bound_s(system, LOAD, rate_mbit) == pytest.approx(bound_s)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_the_rate_for_a_share_gives_that_share(share: float) -> None:
    rate_mbit = rate_mbit_for(LOAD, share)
    transfer_s = wire_s(LOAD, rate_mbit)
    assert transfer_s / lower_bound_s(EP_1F1B, LOAD, rate_mbit) == pytest.approx(share)
