"""From a worker's reports to its endpoint, and the ports of all."""

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from disagmoe.actors.assignments import assignments
from disagmoe.actors.exporting import WorkerExporter
from disagmoe.actors.messages import RunPlan, WorkerAssignment
from disagmoe.config.load import load_run_config
from disagmoe.config.resolve import resolve
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.schedule.from_config import compile_for
from tests.unit.actors.fakes import step_report
from tests.unit.actors.scraping import LOOPBACK, scrape, value

TINY = Path(__file__).resolve().parents[3] / "configs/tiny.toml"


def plan(run_dir: Path, *sets: str, hosts: dict[str, str] | None = None) -> RunPlan:
    config = resolve(load_run_config(TINY, ['parallel.profile="off"', *sets]), cuda=False)
    return RunPlan(
        config=config, run_dir=str(run_dir), host=LOOPBACK, threads_per_worker=1, hosts=hosts or {}
    )


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
