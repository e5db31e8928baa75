"""Biases of experts and balance biases are saved, and restored into any layout."""

from pathlib import Path
from typing import Any

import pytest
import torch

from disagmoe.checkpoint.find import find
from disagmoe.config.run import RunConfig
from disagmoe.data.source import FixedSource
from disagmoe.model import names
from disagmoe.runtime.invariance.compare import tensor_difference
from tests.parity.test_resume import fixed_point
from tests.unit.actors.threadcrew import run_of
from tests.unit.runtime.test_families import FAMILIES
from tests.unit.runtime.tiny import batch_of, tiny

CASES: dict[str, dict[str, Any]] = {
    "deepseek-v3": FAMILIES["deepseek-v3"] | {"train__loss__bias_rate": 0.125},
    "gpt-oss": FAMILIES["gpt-oss"],
}
SAVED_BY = {"parallel__attention_workers": 2, "parallel__expert_workers": 3}
LOADED_BY: dict[str, Any] = {
    "parallel__groups": 2,
    "parallel__attention_workers": 3,
    "parallel__expert_workers": 2,
    "parallel__shared_experts": "'expert'",
}


def finish(
    config: RunConfig, folder: Path, step: int | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Parameters and balance biases at the end of a run that goes on from `step`."""
    source = FixedSource([batch_of(config, seed) for seed in range(4)])
    point = None if step is None else fixed_point(folder, step)
    values: dict[str, torch.Tensor] = {}
    balances: dict[str, torch.Tensor] = {}
    with run_of(config, folder, source, point) as (crew, events):
        assert "ok" in str(list(events)[-1])
        for runtime in crew.runtimes.values():
            values |= {n: v.clone() for n, v in runtime.parameters.global_values().items()}
            for name, bias in runtime.parameters.balances.items():
                assert torch.equal(balances.setdefault(name, bias.clone()), bias), name
    return values, balances


@pytest.mark.parametrize("family", CASES)
def test_another_layout_goes_on_from_what_was_saved(family: str, tmp_path: Path) -> None:
    sets = CASES[family] | {"train__steps": 4, "checkpoint__interval_steps": 2}
    config = tiny(**sets, **SAVED_BY)
    values, balances = finish(config, tmp_path)
    saved = find(f"{tmp_path}@2").manifest.parameters
    wanted = set(names.global_shapes(config.model)) | set(balances)
    assert set(saved) == wanted
    moved = LOADED_BY if config.model.shared_width else LOADED_BY | SAVED_BY
    moved = {k: v for k, v in moved.items() if config.model.shared_width or "shared" not in k}
    again, again_balances = finish(tiny(**sets, **moved), tmp_path, 2)
    assert set(again) == set(values)
    assert max(tensor_difference(again[n], values[n], 0.0) for n in values) < 1e-10
    assert again_balances.keys() == balances.keys()
    for name, bias in balances.items():
        assert torch.equal(again_balances[name], bias)
        assert bias.any()
