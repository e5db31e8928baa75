"""The link of this machine, by two real processes."""

import pytest
import torch

from disagmoe.calibrate.links import End, measure_devices, measure_link
from disagmoe.errors import TransportError
from disagmoe.units import MIB


@pytest.mark.gloo
def test_loopback_has_a_rate_and_a_latency():
    end = End(address="127.0.0.1")
    found = measure_link(end, end, large_bytes=MIB, small_turns=5)
    assert 0 < found.latency_s < MIB / found.bytes_per_s < 5


def test_copies_between_devices_have_a_rate_and_a_latency():
    cpu = torch.device("cpu")
    found = measure_devices(cpu, cpu, large_bytes=MIB)
    assert 0 < found.latency_s < 1
    assert 0 < MIB / found.bytes_per_s < 1


@pytest.mark.gloo
def test_an_address_of_another_machine_is_refused():
    end = End(address="192.0.2.1")
    with pytest.raises(TransportError, match=r"first end at .*: cannot listen on"):
        measure_link(end, end)
