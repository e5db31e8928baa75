"""promtool accepts config, rules and what the PodMonitor becomes, and each alert fires when it
should."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagmoe.dashboards.rules import ALERTS
from disagmoe.metrics.discovery import DRIVER, JOB
from disagmoe.metrics.worker import WorkerMetrics
from disagmoe.schedule.layout import Worker

pytestmark = pytest.mark.prometheus
FOLDER = Path(__file__).resolve().parents[2] / "dashboards/prometheus"

PODMONITOR = FOLDER.parent / "kubernetes/podmonitor.yaml"


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


def endpoints() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(PODMONITOR.read_text())["spec"][
        "podMetricsEndpoints"
    ]
    return found


def as_prometheus_has_it(rule: dict[str, str]) -> dict[str, str]:
    """The operator of Prometheus writes words with capitals where Prometheus has underscores."""
    return {re.sub("([A-Z])", lambda m: f"_{m[1].lower()}", key): rule[key] for key in rule}


def test_the_podmonitor_becomes_a_valid_config(tmp_path: Path) -> None:
    jobs = [
        {
            "job_name": str(one["portNumber"]),
            "relabel_configs": [as_prometheus_has_it(rule) for rule in one["relabelings"]],
            "metric_relabel_configs": [
                as_prometheus_has_it(rule) for rule in one["metricRelabelings"]
            ],
        }
        for one in endpoints()
    ]
    config = tmp_path / "prometheus.yml"
    config.write_text(yaml.safe_dump({"scrape_configs": jobs}))
    assert "SUCCESS" in promtool("check", "config", str(config))
    assert {"target_label": "job", "replacement": JOB} in jobs[0]["relabel_configs"]


def relabelled(labels: dict[str, str]) -> dict[str, str]:
    """What the rules of the PodMonitor for series, all of which replace, make of `labels`."""
    labels = dict(labels)
    for rule in endpoints()[0]["metricRelabelings"]:
        text = rule.get("separator", ";").join(labels.get(one, "") for one in rule["sourceLabels"])
        if found := re.fullmatch(rule.get("regex", "(.*)"), text, re.DOTALL):
            template = re.sub(r"\$(\d)", r"\\\1", rule.get("replacement", "$1"))
            labels[rule["targetLabel"]] = found.expand(template)
    return labels


@pytest.mark.parametrize("name", ["A0.1", "F3.0", "C0.2", "r1.A0.2", "r12.F2.3"])
def test_the_podmonitor_names_workers_as_discovery_does(name: str) -> None:
    worker = Worker.parse(name)
    board = WorkerMetrics(worker, (), lambda: 0.0, lambda: 0.0).board
    served = next(iter(next(iter(board.collect())).samples)).labels
    found = relabelled(served)
    assert (found["instance"], found["stage"]) == (name, str(worker.group))


def test_the_podmonitor_names_the_driver_as_discovery_does() -> None:
    found = relabelled({"role": DRIVER, "group": "0", "rank": "0", "ring": "0"})
    assert (found["instance"], found["stage"]) == (DRIVER, DRIVER)
