"""From reports and events to endpoints and their list; sockets of this machine alone."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from disagmoe.actors.assignments import assignments
from disagmoe.actors.events import RunEnded
from disagmoe.actors.exporting import RunExporter, WorkerExporter, run_exporter
from disagmoe.actors.messages import RunPlan, WorkerAssignment
from disagmoe.config.load import load_run_config
from disagmoe.config.resolve import resolve
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.schedule.from_config import compile_for
from tests.unit.actors.fakes import step_report
from tests.unit.api.runs import evaluation, started, step

TINY = Path(__file__).resolve().parents[3] / "configs/tiny.toml"
LOOPBACK = "127.0.0.1"


def plan(run_dir: Path, *sets: str, hosts: dict[str, str] | None = None) -> RunPlan:
    config = resolve(load_run_config(TINY, ['parallel.profile="off"', *sets]), cuda=False)
    return RunPlan(
        config=config, run_dir=str(run_dir), host=LOOPBACK, threads_per_worker=1, hosts=hosts or {}
    )


def scrape(port: int | None) -> dict[str, float]:
    """Values by name and labels, without those of who serves them."""
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=10) as answer:
        lines = [x for x in answer.read().decode().splitlines() if x[0] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def value(found: dict[str, float], name: str) -> float:
    (one,) = [number for key, number in found.items() if key.partition("{")[0] == name]
    return one


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[RunExporter]:
    with run_exporter(plan(tmp_path / "run-1", f'metrics.targets_dir="{tmp_path}/w"')) as made:
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
    exporter.observe(started())
    exporter.observe(step(0))
    exporter.observe(step(1, skipped="no target"))
    exporter.observe(evaluation(1))
    exporter.metrics.restarted("died")
    (driver,) = listed(tmp_path / "run-1/prom_sd.json")
    found = scrape(int(driver["targets"][0].rpartition(":")[2]))
    expected = {
        "steps_total": 2,
        "skipped_steps_total": 1,
        "step_seconds_total": 4,
        "tokens_total": 200,
        "loss": 4,
        "eval_loss": 7,
    }
    assert {name: value(found, f"disagmoe_{name}") for name in expected} == expected
    causes = {key: v for key, v in found.items() if key.startswith("disagmoe_restarts_total")}
    assert len(causes) == 5
    assert sum(causes.values()) == 1


@pytest.mark.gloo
def test_a_list_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with run_exporter(plan(tmp_path / "r", f'metrics.targets_dir="{tmp_path}/file"')) as made:
        made.observe(started())
    assert "cannot write where the metrics are" in caplog.text


@pytest.mark.gloo
def test_a_worker_serves_what_it_reports() -> None:
    runtime = SimpleNamespace(
        sending=("A0>F0.act", "world"), interpreter=SimpleNamespace(progressed_at_s=0.0)
    )
    assignment = SimpleNamespace(worker="A0.0", host=LOOPBACK, metrics_port=0)
    made = WorkerExporter(cast(WorkerAssignment, assignment), cast(WorkerRuntime, runtime))
    with closing(made):
        made.step(step_report(0))
        made.step(step_report(1))
        made.paused({"idle": 3.0})
        found = scrape(made.port)
    assert value(found, "disagmoe_worker_steps_total") == 2
    assert value(found, "disagmoe_memory_peak_bytes") == 1001
    who = 'group="0",{}rank="0",ring="0",role="attention"'
    seconds = {
        kind: found[f"disagmoe_seconds_total{{{who.format(f'kind={chr(34)}{kind}{chr(34)},')}}}"]
        for kind in ("compute", "recv_wait", "idle")
    }
    assert seconds == {"compute": 2, "recv_wait": 2, "idle": 3}
    sent = [number for key, number in found.items() if key.startswith("disagmoe_channel_bytes")]
    assert sent == [128, 16]


def test_ports_of_a_host_follow_each_other(tmp_path: Path) -> None:
    hosts = {"A0.0": "h1", "A0.1": "h1", "F0.0": "h2", "F0.1": "h2"}
    sets = ["parallel.attention_workers=2", "parallel.expert_workers=2"]
    made = plan(tmp_path, *sets, "metrics.port_base=9100", hosts=hosts)
    train, evaluation_programs = compile_for(made.config)
    ports = [one.metrics_port for one in assignments(made, train, evaluation_programs, 1)]
    assert ports == [9101, 9102, 9101, 9102]
    free = plan(tmp_path, *sets)
    assert {one.metrics_port for one in assignments(free, train, None, 1)} == {0}
