"""What is computed without asking the device, beside how one would write it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.model.device import count_values, on_device, sum_segments, to_device, to_host


@given(st.lists(st.integers(0, 5), max_size=20))
def test_values_are_counted(values: list[int]) -> None:
    counted = count_values(torch.tensor(values, dtype=torch.int64), 6)
    assert to_host(counted) == [values.count(value) for value in range(6)]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_segments_are_summed_in_the_asked_type(counts: list[int]) -> None:
    values_PN = torch.arange(2.0 * sum(counts)).reshape(-1, 2).to(torch.bfloat16)
    summed = sum_segments(values_PN, torch.tensor(counts), torch.float32)
    expected = torch.stack([part.float().sum(dim=0) for part in values_PN.split(counts)])
    torch.testing.assert_close(summed, expected, rtol=0, atol=0)


def test_on_the_cpu_nothing_is_copied() -> None:
    host = torch.arange(3)
    assert on_device(host, torch.device("cpu")) is host
    assert to_host(to_device([3, 1], torch.device("cpu"))) == [3, 1]


@pytest.mark.gpu
def test_a_copy_to_the_device_is_queued() -> None:
    device = torch.device("cuda", 0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        copied = to_device([3, 1], device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert copied.device == device
    assert to_host(copied) == [3, 1]
