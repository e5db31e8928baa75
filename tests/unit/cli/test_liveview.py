"""The live view: fits 80 columns, says what matters, and needs no clock of its own."""

from dataclasses import replace
from pathlib import Path

import pytest

from disagmoe.api import RunRestarting
from disagmoe.cli.liveview import ASCII, UNICODE, LiveState, sparkline, view
from disagmoe.config.load import override
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from tests.unit.api.runs import evaluation, step

ROOT = Path(__file__).resolve().parents[3]


def state() -> LiveState:
    loaded = RunConfig.load(ROOT / "configs/tiny.toml")
    return LiveState(resolve(override(loaded, ["train.steps=8"]), cuda=False), began_s=0.0)


def shown(seen: LiveState, now_s: float, width: int = 80) -> list[str]:
    return [line.plain for line in view(seen, now_s, ASCII, width)]


def test_before_the_first_step() -> None:
    assert shown(state(), 4.0) == [
        "tiny  1 x (1 attention + 1 expert) workers, af_pipe, cpu fp32",
        "starting workers, 4.0 s",
    ]


def test_steps() -> None:
    seen = state()
    seen.step(step(0), 1.0)
    seen.step(step(1), 3.0)
    seen.evaluation(evaluation(1), 4.0)
    assert shown(seen, 5.0) == [
        "tiny  1 x (1 attention + 1 expert) workers, af_pipe, cpu fp32",
        "step 2/8 ######..................  25 %  left 12.0 s",
        "loss 4.0000 #_  held out 7.0000",
        "50 tokens/s  2.0 s/step  grad norm 0.5  lr 0.001",
        "A0  ##################======  75 % busy, 25 % network,  0 % waits",
        "F0  ############============  50 % busy, 50 % network,  0 % waits",
        "experts: busiest 1.50 x mean, 1 unused  memory of a worker: 1001 B at most",
    ]


def test_warnings() -> None:
    seen = state()
    seen.step(step(0, skipped="no target"), 1.0)
    seen.step(replace(step(1), expert_load=(1.0, 4.5)), 3.0)
    assert shown(seen, 3.0 + 15.0)[-2:] == [
        "! step 1: no update, because no target",
        "! step 2: busiest expert of layer 1 has 4.5 x the mean",
    ]
    assert shown(seen, 3.0 + 16.0)[-1] == "! no step for 16.0 s, usual 2.0 s"


def test_layers_keep_their_numbers_where_the_first_ones_are_dense() -> None:
    config = RunConfig.load(ROOT / "configs/tiny_deepseek_v3.toml")
    seen = LiveState(resolve(config, cuda=False), began_s=0.0)
    seen.step(replace(step(1), expert_load=(1.0, 4.5)), 1.0)
    assert seen.warnings == ("step 2: busiest expert of layer 2 has 4.5 x the mean",)


def test_workers_that_are_started_again() -> None:
    seen = state()
    for number in range(4):
        seen.step(step(number), float(number))
    message = "F0.1 died: its process is gone (signal 9)\nmore of it"
    failed = RunRestarting(
        epoch=1, cause="died", message=message, failures=(), step=2, steps_lost=2, pause_s=1.0
    )
    seen.restarting(failed, 5.0)
    lines = shown(seen, 55.0)
    assert lines[1].startswith("step 2/8 ")
    assert lines[-2:] == [
        "! back to step 2: F0.1 died: its process is gone (signal 9)",
        "! workers are being started again, 50.0 s",
    ]
    seen.step(step(2), 60.0)
    lines = shown(seen, 61.0)
    assert lines[1].startswith("step 3/8 ")
    assert lines[-1] == "! back to step 2: F0.1 died: its process is gone (signal 9)"


def test_workers_that_failed_before_the_first_checkpoint() -> None:
    seen = state()
    seen.step(step(0), 0.0)
    failed = RunRestarting(
        epoch=1, cause="late", message="late", failures=(), step=0, steps_lost=1, pause_s=1.0
    )
    seen.restarting(failed, 5.0)
    assert shown(seen, 6.0) == [
        "tiny  1 x (1 attention + 1 expert) workers, af_pipe, cpu fp32",
        "! back to step 0: late",
        "! workers are being started again, 1.0 s",
    ]


def test_only_the_last_warnings_are_shown() -> None:
    seen = state()
    for number in range(6):
        seen.step(step(number, skipped="why"), 1.0)
    assert [line for line in shown(seen, 1.0) if line.startswith("!")] == [
        f"! step {number}: no update, because why" for number in (4, 5, 6)
    ]


@pytest.mark.parametrize("width", [40, 80])
def test_it_fits(width: int) -> None:
    seen = state()
    for number in range(500):
        seen.step(step(number, loss=float("nan") if number % 3 else 1e6, skipped="x" * 90), 1.0)
    assert max(map(len, shown(seen, 99.0, width))) <= width
    assert max(line.cell_len for line in view(seen, 99.0, UNICODE, width)) <= width


def test_sparklines() -> None:
    assert sparkline([0.0, 1.0, 2.0], 8, ASCII) == "_=#"
    assert sparkline([0.0, 2.0, 4.0, 4.0], 2, ASCII) == "_#"
    assert sparkline([3.0], 8, ASCII) == "_"
    assert sparkline([float("nan"), float("inf")], 8, ASCII) == ""
    assert len(sparkline([float(n) for n in range(401)], 24, UNICODE)) <= 24
