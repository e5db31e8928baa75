from dataclasses import fields

import pytest

from disagmoe.costs.hardware import PRESETS, device_preset, hardware
from disagmoe.errors import ConfigError


@pytest.mark.parametrize("name", PRESETS)
def test_every_number_has_a_source(name):
    preset = PRESETS[name]
    numbers = {field.name for field in fields(preset)} - {"name", "sources"}
    assert {field for field, source in preset.sources.items() if source} == numbers
    assert all(getattr(preset, field) > 0 for field in numbers)
    assert preset.name == name


def test_an_h800_is_an_h100_with_a_slower_nvlink():
    h800, h100 = hardware("h800"), hardware("h100")
    differ = {field for field in h800.sources if getattr(h800, field) != getattr(h100, field)}
    assert differ == {"nvlink_bytes_per_s"}
    assert h800.nvlink_bytes_per_s * 2 == 400e9


def test_peaks_by_precision():
    h800 = hardware("h800")
    assert (h800.peak_flops("bf16"), h800.peak_flops("fp32")) == (989e12, 67e12)
    with pytest.raises(ConfigError, match=r'^train\.precision = "fp64": no rates are known'):
        h800.peak_flops("fp64")


def test_an_unknown_machine_is_answered_with_those_that_are_known():
    with pytest.raises(ConfigError) as caught:
        hardware("v100")
    assert str(caught.value) == (
        "unknown machine 'v100'; known: a100, h100, h800, h20, h200, b200, cpu"
    )


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H800", "h800"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100 80GB PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA A10", None),
        ("cpu", None),
        ("", None),
    ],
)
def test_gpus_by_the_names_that_cuda_gives_them(device, name):
    found = device_preset(device)
    assert (found and found.name) == name
