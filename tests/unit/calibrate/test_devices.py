"""Copies between two devices of this machine; here they are the same."""

import torch

from disagmoe.calibrate.devices import measure_devices
from disagmoe.units import MIB


def test_copies_between_devices_have_a_rate_and_a_latency():
    cpu = torch.device("cpu")
    found = measure_devices(cpu, cpu, large_bytes=MIB)
    assert 0 < found.latency_s < 1
    assert 0 < MIB / found.bytes_per_s < 1
