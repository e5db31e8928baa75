"""From a worker's reports to its endpoint, and the ports of all."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from disagmoe.actors.assignments import assignments
from disagmoe.actors.exporting import WorkerExporter
from disagmoe.actors.messages import WorkerAssignment
from disagmoe.config.load import load_run_config
from disagmoe.config.resolve import resolve
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.schedule.from_config import compile_for
from tests.unit.actors.fakes import step_report
from tests.unit.actors.plans import plan_of
from tests.unit.actors.scraping import LOOPBACK, scrape, value

TINY = Path(__file__).resolve().parents[3] / "configs/tiny.toml"


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


def test_ports_of_a_host_follow_each_other() -> None:
    sets = ['parallel.profile="off"', "parallel.attention_workers=2", "parallel.expert_workers=2"]

    def ports(*more: str) -> list[int]:
        config = resolve(load_run_config(TINY, [*sets, *more]), cuda=False)
        plan = plan_of(config)
        hosts = ["h1", "h1", "h2", "h2"]
        places = {
            name: replace(place, host=host)
            for (name, place), host in zip(plan.places.items(), hosts, strict=True)
        }
        train, evaluation = compile_for(config)
        told = assignments(replace(plan, places=places), train, evaluation, 1)
        return [one.metrics_port for one in told]

    assert ports("metrics.port_base=9100") == [9101, 9102, 9101, 9102]
    assert ports() == [0, 0, 0, 0]
