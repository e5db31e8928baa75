"""The link of this machine, by two real processes."""

import os

import pytest

from disagmoe.calibrate.links import LinkRate, measure_link, measure_messages
from disagmoe.calibrate.pair import End
from disagmoe.errors import TransportError
from disagmoe.units import MIB


@pytest.mark.parametrize("burst", [0, 20_000])
def test_a_rate_that_is_enforced_leaves_a_burst(burst):
    def seconds(nbytes):
        return 1e-4 + (nbytes - burst) / 25e6

    found = LinkRate.of(1e-4, {32 * MIB: seconds(32 * MIB), 200_000: seconds(200_000)})
    assert found.bytes_per_s == pytest.approx(25e6, rel=1e-3)
    assert (found.latency_s, found.burst_bytes) == pytest.approx((1e-4, burst), abs=200)


@pytest.mark.gloo
def test_loopback_has_a_rate_and_a_latency():
    end = End(address="127.0.0.1")
    found = measure_link(end, end, large_bytes=32 * MIB, small_turns=20)
    assert 0 < found.latency_s < 32 * MIB / found.bytes_per_s < 5


@pytest.mark.gloo
def test_an_address_of_another_machine_is_refused():
    end = End(address="192.0.2.1")
    with pytest.raises(TransportError, match=r"first end at .*: cannot listen on"):
        measure_link(end, end)


@pytest.mark.gloo
def test_messages_take_from_compute_on_their_cores():
    first, last = min(cores := os.sched_getaffinity(0)), max(cores)
    ends = (End(address="127.0.0.1", core=core) for core in (first, last))
    found = measure_messages(*ends, LinkRate(bytes_per_s=1e9, latency_s=1e-4), rounds=1)
    for work in (found.send, found.receive):
        assert 0 < work(1, MIB) < 0.1
    assert "ms per MiB to receive" in found.text
