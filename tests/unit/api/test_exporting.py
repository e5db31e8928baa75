"""From events of a run to its metrics and the list of its endpoints."""

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disagmoe.actors.events import CheckpointSaved, RunEnded, RunRestarting
from disagmoe.actors.recovery import Cause
from disagmoe.api.exporting import RunExporter, run_exporter
from disagmoe.config.load import load_run_config
from tests.unit.actors.scraping import LOOPBACK, scrape, value
from tests.unit.api.runs import evaluation, placed, started, step

PEAKS = ("metrics.attention_peak_flops=1e9", "metrics.expert_peak_flops=1e9")
TINY = Path(__file__).resolve().parents[3] / "configs/tiny.toml"


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[RunExporter]:
    config = load_run_config(TINY, [f'metrics.targets_dir="{tmp_path}/w"', *PEAKS])
    with run_exporter(config, tmp_path / "run-1", LOOPBACK) as made:
        yield made


def listed(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


@pytest.mark.gloo
def test_targets_are_listed_while_the_run_goes_on(exporter: RunExporter, tmp_path: Path) -> None:
    workers = tuple(
        replace(worker, metrics_port=port)
        for worker, port in zip(started().workers, (9101, None), strict=True)
    )
    exporter.observe(replace(started(), workers=workers))
    found = listed(tmp_path / "run-1/prom_sd.json")
    assert listed(tmp_path / "w/run-1.json") == found
    names = [(one["labels"]["instance"], one["labels"]["stage"]) for one in found]
    assert names == [("A0.0", "A0"), ("driver", "driver")]  # F0.0 could not serve
    assert found[0]["targets"] == ["127.0.0.1:9101"]
    with urllib.request.urlopen(f"http://{found[1]['targets'][0]}/sd", timeout=10) as answer:
        assert json.load(answer) == found
    exporter.observe(RunEnded(status="ok"))
    assert listed(tmp_path / "run-1/prom_sd.json") == listed(tmp_path / "w/run-1.json") == []


@pytest.mark.gloo
def test_events_become_metrics(exporter: RunExporter, tmp_path: Path) -> None:
    exporter.observe(placed())
    exporter.observe(started())
    exporter.observe(step(0))
    exporter.observe(step(1, skipped="no target"))
    exporter.observe(evaluation(1))
    failed = RunRestarting(
        epoch=1, cause="died", message="F0.0 died", failures=(), step=1, steps_lost=1, pause_s=1.0
    )
    exporter.observe(failed)
    saved = CheckpointSaved(step=2, place="p", size_bytes=1, elapsed_s=3.0, deleted=(), problem="")
    exporter.observe(saved)
    (driver,) = listed(tmp_path / "run-1/prom_sd.json")
    found = scrape(int(driver["targets"][0].rpartition(":")[2]))
    expected = {
        "steps_total": 2,
        "skipped_steps_total": 1,
        "step_seconds_total": 4,
        "tokens_total": 200,
        "loss": 4,
        "eval_loss": 7,
        "checkpoints_total": 1,
        "restarting": 1,
        "lost_steps_total": 1,
        "progress_steps": 1,
    }
    assert {name: value(found, f"disagmoe_{name}") for name in expected} == expected
    peaks = [v for key, v in found.items() if key.startswith("disagmoe_peak_flops")]
    assert peaks == [1e9, 1e9]
    causes = {key: v for key, v in found.items() if key.startswith("disagmoe_restarts_total")}
    assert len(causes) == len(Cause)
    assert sum(causes.values()) == 1


@pytest.mark.gloo
def test_a_list_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    config = load_run_config(TINY, [f'metrics.targets_dir="{tmp_path}/file"'])
    with run_exporter(config, tmp_path / "r", LOOPBACK) as made:
        made.observe(started())
    assert "cannot write where the metrics are" in caplog.text
