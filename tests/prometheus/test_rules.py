"""promtool accepts config and rules, and each alert fires when it should."""

import subprocess
from pathlib import Path

import pytest

from disagmoe.dashboards.rules import ALERTS

pytestmark = pytest.mark.prometheus
FOLDER = Path(__file__).resolve().parents[2] / "dashboards/prometheus"


def promtool(*arguments: str) -> str:
    done = subprocess.run(
        ["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_config_is_valid() -> None:
    assert "SUCCESS: 2 rule files found" in promtool("check", "config", "prometheus.yml")


def test_the_rules_are_valid() -> None:
    said = promtool("check", "rules", "rules/recording.yml", "rules/alerts.yml")
    assert said.count("SUCCESS") == 2


def test_each_alert_fires_when_it_should() -> None:
    promtool("test", "rules", "tests/alerts.yml")
    tested = (FOLDER / "tests/alerts.yml").read_text()
    assert [alert.name for alert in ALERTS if f"alertname: {alert.name}\n" not in tested] == []
