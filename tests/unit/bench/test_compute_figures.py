"""Figures and checks of made-up trainings."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disagmoe.bench import compute_figures
from disagmoe.bench.apart import Learned
from disagmoe.bench.compute import Outcome, Side
from disagmoe.bench.compute_figures import as_json, checks, fastest, tokens_per_s
from disagmoe.config.load import load_run_config
from disagmoe.schedule.accounting import Shares

CONFIG = load_run_config(Path(__file__).parents[3] / "configs/bench/compute.toml")
TOKENS = 4096


def side(name: str, steps_s: Sequence[float], loss: float = 8.0, norm: float = 2.0) -> Side:
    return Side(
        name=name,
        step_tokens=TOKENS,
        micro_batch_size=2,
        steps_s=tuple(steps_s),
        learned=(Learned(loss, norm), Learned(loss - 1, norm)),
    )


def outcome(*changed: Side) -> Outcome:
    """Transformers' best takes 4 s, the reference 3 s, the run 2 s."""
    sides = {
        "grouped_mm": side("grouped_mm", [4.0, 9.0, 3.0]),
        "eager": replace(side("eager", [7.0]), left_out="late"),
        # fewer seconds, but of a single sequence
        "batched_mm": Side(name="batched_mm", step_tokens=256, steps_s=(3.5,), left_out="late"),
        "reference": side("reference", [3.0, 3.0, 8.0]),
        "run": replace(
            side("run", [2.0, 1.0, 9.0]),
            shares={"A0.0": Shares(utilisation=0.9, exposed_communication=0.1, bubble=0.0)},
        ),
    }
    return Outcome(
        config=CONFIG,
        cores=2,
        flops=6e9,
        gemm_flops_per_s=3e9,
        sides=sides | {one.name: one for one in changed},
    )


@pytest.fixture(autouse=True)
def transformers_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_figures, "check_transformers", lambda: "5.0.0")


def test_figures_are_of_medians_and_the_fastest_implementation_counts() -> None:
    figures = as_json(outcome(), rounds=3)
    expected = {
        "valid": True,
        "transformers_tokens_per_s": TOKENS / 4,
        "reference_tokens_per_s": TOKENS / 3,
        "run_tokens_per_s": TOKENS / 2,
        "transformers_experts": "grouped_mm",
        "run_over_transformers": 2.0,
        "reference_over_transformers": pytest.approx(4 / 3),
        "loss_difference": 0.0,
        "grad_norm_difference": 0.0,
        "rounds": 3,
        "cores": 2,
        "lower_bound_s": 2.0,
    }
    assert {name: figures[name] for name in expected} == expected
    assert list(figures["sides"]) == ["grouped_mm", "eager", "batched_mm", "reference", "run"]
    assert figures["versions"]["transformers"] == "5.0.0"


def test_a_side_tells_all_its_steps_and_what_it_learned() -> None:
    shown: dict[str, Any] = as_json(outcome(), rounds=3)["sides"]
    assert shown["run"] == {
        "tokens_per_s": TOKENS / 2,
        "step_tokens": TOKENS,
        "step_s": 2.0,
        "steps_s": [2.0, 1.0, 9.0],
        "micro_batch_size": 2,
        "losses": [8.0, 7.0],
        "grad_norms": [2.0, 2.0],
        "shares": {"A0.0": {"utilisation": 0.9, "exposed_communication": 0.1, "bubble": 0.0}},
        "left_out": "",
    }
    assert shown["batched_mm"]["tokens_per_s"] == pytest.approx(256 / 3.5)
    assert shown["batched_mm"]["losses"] == []


def test_what_this_machine_cannot_run_has_a_reason_instead_of_a_figure() -> None:
    changed = outcome(Side(name="batched_mm", left_out="no memory"))
    assert as_json(changed, rounds=3)["sides"]["batched_mm"] == {"left_out": "no memory"}
    assert fastest(changed).name == "grouped_mm"


def test_tokens_count_not_steps() -> None:
    quick = Side(name="batched_mm", step_tokens=256, steps_s=(0.1,))
    assert fastest(outcome(quick)) is quick
    assert tokens_per_s(quick) == pytest.approx(2560)


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        (side("eager", [7.0], loss=8.0 * 1.003), "same loss of the first step"),
        (side("reference", [3.0], loss=8.0 * 0.997), "same loss of the first step"),
        (side("grouped_mm", [4.0], norm=2.0 * 1.03), "same gradient norm of the first step"),
    ],
)
def test_a_side_that_trains_another_model_makes_the_comparison_invalid(
    changed: Side, broken: str
) -> None:
    found = checks(outcome(changed))
    assert [name for name, holds in found.items() if not holds] == [broken]
    assert as_json(outcome(changed), rounds=1)["valid"] is False


def test_bf16_rounds_and_fp32_does_not() -> None:
    rounded = outcome(side("reference", [3.0], loss=8.0 * 1.001, norm=2.0 * 1.01))
    assert all(checks(rounded).values())
    train = CONFIG.train.model_copy(update={"precision": "fp32"})
    exact = replace(rounded, config=CONFIG.model_copy(update={"train": train}))
    assert not any(checks(exact).values())
