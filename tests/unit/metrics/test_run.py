"""What the driver tells of a run, and what a run without peaks does not."""

from pathlib import Path

import pytest
from prometheus_client import generate_latest

from disagmoe.config.load import load_run_config
from disagmoe.config.resolve import resolve
from disagmoe.costs.flops import model_flops
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


def test_peaks_are_told_once_the_devices_are_known() -> None:
    metrics = RunMetrics(resolve(load_run_config(TINY, ()), cuda=True), [], lambda: 0.0)
    metrics.placed({"A0.0": "NVIDIA H800", "F0.0": "NVIDIA H20"})
    found = {name: value for name, value in values(metrics).items() if "peak_flops" in name}
    assert sorted(found.values()) == [148e12, 989e12]
    metrics.placed({"A0.0": "NVIDIA H800", "F0.0": "NVIDIA H800"})  # a restart, on another node
    found = {name: value for name, value in values(metrics).items() if "peak_flops" in name}
    assert sorted(found.values()) == [989e12, 989e12]


def test_a_restart_lasts_until_the_next_step_and_puts_the_model_back() -> None:
    clock = [10.0]
    metrics = RunMetrics(load_run_config(TINY, ()), ["died", "late"], lambda: clock[0])
    metrics.resumed(100)
    assert values(metrics)["progress_steps"] == 100
    metrics.step(figures(100, 6))
    metrics.step(figures(101, 6))
    names = ("restarting", "progress_steps", "lost_steps_total", "restart_seconds_total")

    def told() -> tuple[float, ...]:
        found = values(metrics)
        return tuple(found[name] for name in names)

    assert told() == (0, 102, 0, 0)
    clock[0] = 20.0
    metrics.restarting("died", step=100, steps_lost=2)
    assert told() == (1, 100, 2, 0)
    clock[0] = 23.0
    metrics.restarting("late", step=100, steps_lost=0)  # before it had done a step
    assert told() == (1, 100, 2, 0)
    clock[0] = 30.0
    metrics.step(figures(100, 6))  # lasts 1 s
    assert told() == (0, 101, 2, 9)
    clock[0] = 40.0
    metrics.step(figures(101, 6))
    assert told() == (0, 102, 2, 9)
    restarts = {name: value for name, value in values(metrics).items() if "restarts" in name}
    assert restarts == {'restarts_total{cause="died"}': 1, 'restarts_total{cause="late"}': 1}


def test_steps_checkpoints_and_restarts_are_counted() -> None:
    config = load_run_config(TINY, ())
    clock = [10.0]
    metrics = RunMetrics(config, ["died", "late"], lambda: clock[0])
    clock[0] = 20.0
    metrics.step(figures(0, 6))
    metrics.step(figures(1, 6))
    metrics.restarting("late", step=2, steps_lost=0)
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


def test_layers_keep_their_numbers_where_the_first_ones_are_dense() -> None:
    config = load_run_config(TINY.with_name("tiny_deepseek_v3.toml"), ())
    metrics = RunMetrics(config, [], lambda: 10.0)
    metrics.step(figures(0, config.model.moe_layers))
    named = {
        series.labels["layer"]
        for family in metrics.board.registry.collect()
        for series in family.samples
        if "layer" in series.labels
    }
    assert config.model.dense_layers == 1
    assert named == {str(layer) for layer in range(1, config.model.layers)}
