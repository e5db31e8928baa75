"""What the driver tells of a run, and what a run without peaks does not."""

from pathlib import Path

import pytest
from prometheus_client import generate_latest

from disagmoe.config.load import load_run_config
from disagmoe.metrics.flops import model_flops
from disagmoe.metrics.run import RunMetrics
from tests.unit.metrics.test_series import figures

TINY = Path(__file__).resolve().parents[3] / "configs/tiny.toml"
WHO = 'group="0",rank="0",ring="0",role="driver"'


def values(metrics: RunMetrics) -> dict[str, float]:
    found = {}
    for line in generate_latest(metrics.board.registry).decode().splitlines():
        if line[0] != "#":
            name, _, value = line.rpartition(" ")
            found[
                name.removeprefix("disagmoe_").replace(f",{WHO}", "").replace(f"{{{WHO}}}", "")
            ] = float(value)
    return found


def test_a_run_before_its_first_step_has_zeros_and_says_nothing_it_does_not_know() -> None:
    found = values(RunMetrics(load_run_config(TINY, ()), ["died", "late"], lambda: 77.0))
    restarts = {name: value for name, value in found.items() if "restarts" in name}
    assert restarts == {'restarts_total{cause="died"}': 0, 'restarts_total{cause="late"}': 0}
    assert found["target_steps"] == 3
    assert found["last_checkpoint_timestamp_seconds"] == 77
    assert found["steps_total"] == 0
    assert "loss" not in found
    assert "peak_flops" not in found


def test_steps_checkpoints_and_restarts_are_counted() -> None:
    config = load_run_config(TINY, ())
    clock = [10.0]
    metrics = RunMetrics(config, ["died", "late"], lambda: clock[0])
    clock[0] = 20.0
    metrics.step(figures(0, 6))
    metrics.step(figures(1, 6))
    metrics.restarted("late")
    metrics.checkpoint_durable(decided_at_s=18.0)
    metrics.evaluation(3.5)
    found = values(metrics)
    expected = {
        "steps_total": 2,
        "skipped_steps_total": 1,
        "progress_steps": 2,
        "step_seconds_total": 2,
        "tokens_total": 8192,
        "model_flops_total": 8192 * model_flops(config.model, 13),
        "loss": 2,
        "eval_loss": 3.5,
        "last_step_timestamp_seconds": 20,
        "checkpoints_total": 1,
        "checkpoint_seconds_total": 2,
        "last_checkpoint_timestamp_seconds": 18,
        'restarts_total{cause="late"}': 1,
        'restarts_total{cause="died"}': 0,
        'expert_load_max_over_mean{group="0",layer="5",rank="0",ring="0",role="driver"}': 2,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
