"""FLOPs that MFU is measured by, against counts by hand."""

from pathlib import Path

import pytest

from disagmoe.config.load import load_run_config
from disagmoe.metrics.flops import mfu, model_flops, peak_flops

TINY = Path(__file__).resolve().parents[3] / "configs/tiny.toml"
PEAKS = ["metrics.attention_peak_flops=1e12", "metrics.expert_peak_flops=2e12"]


def test_flops_of_a_token_by_hand() -> None:
    model = load_run_config(TINY, ()).model
    # hidden 32, 4 and 2 heads of 8, 7 experts of width 16, top-2, 6 layers, vocabulary 64
    weights = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 32 * 7 + 2 * 3 * 32 * 16
    scores = 2 * 2 * 32 * 7  # two products over 32 wide queries and 7 keys on average of 13
    assert model_flops(model, 13) == 3 * (6 * (2 * weights + scores) + 2 * 32 * 64)


def test_peaks_of_both_sides() -> None:
    sizes = ["parallel.attention_workers=2", "parallel.expert_workers=3", "parallel.rings=2"]
    split = load_run_config(TINY, [*sizes, *PEAKS])
    assert peak_flops(split) == {"attention": 4e12, "expert": 12e12}
    same = ["parallel.schedule=ep_1f1b", "parallel.attention_workers=2"]
    colocated = load_run_config(TINY, [*same, "parallel.expert_workers=2", *PEAKS])
    assert peak_flops(colocated) == {"attention": 2e12}
    assert peak_flops(load_run_config(TINY, ())) == {}


def test_mfu_is_against_both_peaks() -> None:
    config = load_run_config(TINY, PEAKS)
    assert mfu(config, 1e6) == pytest.approx(1e6 * model_flops(config.model, 13) / 3e12)
    assert mfu(load_run_config(TINY, ()), 1e6) is None
