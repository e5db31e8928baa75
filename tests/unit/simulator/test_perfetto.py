"""A simulated step as a trace that Perfetto opens."""

import gzip
import json

import pytest

from disagmoe.simulator.chart import chart_of
from disagmoe.simulator.perfetto import write_trace
from disagmoe.simulator.simulate import simulate
from tests.unit.costs.public_models import MODELS
from tests.unit.costs.scenarios import run

FEW = MODELS["qwen3-235b-a22b"].model_copy(update={"layers": 4})


def test_a_trace_has_every_bar_on_the_thread_of_its_group_or_channel(tmp_path):
    sizes = {"attention_workers": 4, "expert_workers": 4, "micro_batch_size": 4}
    result = simulate(run(FEW, "train.global_batch_size=8", **sizes))
    chart = chart_of(result, "two")
    write_trace(chart, tmp_path / "trace.json.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"]
    with gzip.open(tmp_path / "trace.json.gz", "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    assert list(processes.values()) == ["A0", "F0"]
    assert [threads[1, 0], threads[2, 0], threads[2, 1]] == ["program", "program", "A0>F0.act"]
    timed = [event for event in events if event["ph"] == "X"]
    assert len(timed) == len(chart.bars)
    assert max(e["ts"] + e["dur"] for e in timed) == pytest.approx(1e6 * result.makespan_s)
    named = [e for e in timed if e["name"] == "experts forward m1"]
    assert [processes[e["pid"]] for e in named] == ["F0"] * 4
