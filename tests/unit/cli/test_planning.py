"""Commands that plan and compare: what they print, and what they say of bad input."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from disagmoe.cli.main import app, exit_code
from disagmoe.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
CLUSTER = str(CONFIGS / "clusters" / "h800x16-qwen3-235b.toml")
TINY = str(CONFIGS / "tiny.toml")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("hardware.nic_speed=0", "hardware.nic_speed = 0; expected a number > 0"),
        (
            "hardware.attention_machine=h900",
            'hardware.attention_machine = "h900" is no machine that is known; use "a100", "h100"',
        ),
        (
            "parallel.groups=95",
            "parallel.groups = 95 is more than model.layers = 94, so some groups would own no",
        ),
    ],
)
@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_bad_input_is_explained(command, setting, said):
    result = CliRunner().invoke(app, [command, "--config", CLUSTER, "--set", setting])
    assert isinstance(result.exception, ConfigError)
    assert exit_code(result.exception) == 2
    assert said in str(result.exception)


def test_what_cannot_fit_is_simulated_only_when_asked():
    large = [f"--set=model.{key}=32768" for key in ("hidden", "expert_width")]
    command = ["simulate", "--config", TINY, "--set=hardware.attention_machine=cpu", *large]
    result = CliRunner().invoke(app, command)
    assert exit_code(result.exception) == 2
    said = str(result.exception)
    assert said.startswith("the run cannot fit into memory: ")
    assert "with balanced routing: " in said
    anyway = CliRunner().invoke(app, [*command, "--ignore-memory", "--json"])
    assert not json.loads(anyway.stdout)["fits"]


def test_reproduce_prints_rows_and_counts():
    result = CliRunner().invoke(app, ["reproduce", "--only", "fig6a", "--json"])
    found = json.loads(result.stdout)
    assert len(found["rows"]) == 3 * 6
    assert found["held_out"] == {"in_band": 0, "total": 0}
    assert (found["fitted"]["in_band"], found["fitted"]["total"]) == (6, 6)
    assert found["held_out_by_calibration"]["h800-kernel"]["total"] == 6


def test_reproduce_knows_its_experiments():
    result = CliRunner().invoke(app, ["reproduce", "--only", "fig7"])
    assert isinstance(result.exception, ConfigError)
    assert "no experiment 'fig7'" in str(result.exception)
