import gzip
import json
from pathlib import Path
from typing import Any

from disagmoe.runtime.clock import Kind, Span
from disagmoe.runtime.trace import Hop, WorkerTrace, chrome_events, write_trace

TRACE = WorkerTrace(
    4,
    (Span(Kind.COMPUTE, "attn_fwd L0 m0", 10.0, 10.5), Span(Kind.IDLE, "", 10.5, 11.0)),
    (
        Hop("A0>F0.act", "L0 m0", True, 64, 10.5, 10.75),
        Hop("F0>A0.act", "L0 m0", False, 32, 10.75, 11.0),
        Hop("A0>F0.act", "L1 m0", True, 64, 11.0, 11.25),
    ),
)


def read(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        parsed: dict[str, Any] = json.load(file)
    return parsed


def test_events_of_one_worker() -> None:
    events = chrome_events("A0.0", 7, [TRACE])
    assert {event["pid"] for event in events} == {7}
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {0: "program", 1: "A0>F0.act", 2: "F0>A0.act"}
    complete = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert complete == [
        (0, "attn_fwd L0 m0", 10.0e6, 0.5e6),
        (0, "idle", 10.5e6, 0.5e6),
        (1, "send L0 m0", 10.5e6, 0.25e6),
        (2, "recv L0 m0", 10.75e6, 0.25e6),
        (1, "send L1 m0", 11.0e6, 0.25e6),
    ]
    (send, *_) = [e for e in events if e.get("cat") == "transfer"]
    assert send["args"] == {"bytes": 64, "channel": "A0>F0.act", "step": 4}


def test_the_file_is_a_chrome_trace_that_begins_at_zero(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    write_trace(path, {"A0.0": [TRACE], "F0.0": [WorkerTrace(4, (), ())]})
    parsed = read(path)
    assert set(parsed) == {"traceEvents", "displayTimeUnit"}
    events = parsed["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {1: "A0.0", 2: "F0.0"}
    timed = [event for event in events if event["ph"] == "X"]
    assert min(event["ts"] for event in timed) == 0.0
    assert all(event["dur"] >= 0 and {"pid", "tid", "name"} <= event.keys() for event in timed)
    assert {event["ph"] for event in events} == {"M", "X"}
    assert list(tmp_path.iterdir()) == [path]


def test_no_worker_is_an_empty_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    write_trace(path, {})
    assert read(path)["traceEvents"] == []
