"""Peaks of both sides, from the config or from data sheets, and MFU against them."""

from pathlib import Path

import pytest

from disagmoe.config.load import load_run_config
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.costs.flops import model_flops
from disagmoe.metrics.peaks import mfu, peak_flops

TINY = Path(__file__).resolve().parents[3] / "configs/tiny.toml"
PEAKS = ["metrics.attention_peak_flops=1e12", "metrics.expert_peak_flops=2e12"]
GPUS = {"A0.0": "NVIDIA H800", "A0.1": "NVIDIA H800", "F0.0": "NVIDIA H20"}


def config(*sets: str, cuda: bool = True) -> RunConfig:
    return resolve(load_run_config(TINY, sets), cuda=cuda)


@pytest.mark.parametrize(("precision", "h800", "h20"), [("bf16", 989, 148), ("fp32", 67, 44)])
def test_data_sheets_have_the_peaks_of_both_sides(precision: str, h800: int, h20: int) -> None:
    found = peak_flops(config(f"train.precision={precision}"), GPUS)
    assert found == {"attention": pytest.approx(2e12 * h800), "expert": pytest.approx(1e12 * h20)}


def test_the_config_goes_before_data_sheets() -> None:
    assert peak_flops(config(*PEAKS), GPUS) == {"attention": 2e12, "expert": 2e12}
    assert peak_flops(config(*PEAKS, cuda=False), {"A0.0": "cpu", "F0.0": "cpu"}) == {
        "attention": 1e12,
        "expert": 2e12,
    }


def test_colocated_workers_are_those_of_attention() -> None:
    sets = ["parallel.schedule=ep_1f1b", "metrics.attention_peak_flops=3e12"]
    assert peak_flops(config(*sets), {"C0.0": "cpu", "C0.1": "cpu"}) == {"attention": 6e12}


@pytest.mark.parametrize(
    ("devices", "sets"),
    [
        ({"A0.0": "NVIDIA H800", "F0.0": "cpu"}, []),
        ({"A0.0": "NVIDIA H800", "F0.0": "NVIDIA GeForce RTX 4090"}, []),
        (GPUS, ["train.precision=fp64"]),
        ({}, PEAKS),
    ],
)
def test_one_unknown_peak_makes_all_of_it_unknown(devices: dict[str, str], sets: list[str]) -> None:
    made = config(*sets)
    assert peak_flops(made, devices) == {}
    assert mfu(made, devices, 1e6) is None


def test_mfu_is_against_both_peaks() -> None:
    made = config(*PEAKS)
    found = mfu(made, {"A0.0": "cpu", "F0.0": "cpu"}, 1e6)
    assert found == pytest.approx(1e6 * model_flops(made.model, 13) / 3e12)
