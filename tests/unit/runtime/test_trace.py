import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from disagmoe.errors import ConfigError
from disagmoe.runtime.clock import Span
from disagmoe.runtime.trace import (
    TRACE_FILE,
    Hop,
    WorkerTrace,
    chrome_events,
    read_trace,
    write_trace,
)
from disagmoe.schedule.accounting import Kind

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


def test_a_trace_is_read_as_it_was_written_but_begins_at_zero(tmp_path: Path) -> None:
    later = WorkerTrace(5, (Span(Kind.SEND, "", 12.0, 12.5), Span(Kind.DATA, "x", 12.5, 13.0)), ())
    write_trace(tmp_path / TRACE_FILE, {"A0.0": [TRACE, later], "F0.0": []})
    assert read_trace(tmp_path) == {
        "A0.0": [
            WorkerTrace(
                4,
                (Span(Kind.COMPUTE, "attn_fwd L0 m0", 0.0, 0.5), Span(Kind.IDLE, "", 0.5, 1.0)),
                (
                    Hop("A0>F0.act", "L0 m0", True, 64, 0.5, 0.75),
                    Hop("F0>A0.act", "L0 m0", False, 32, 0.75, 1.0),
                    Hop("A0>F0.act", "L1 m0", True, 64, 1.0, 1.25),
                ),
            ),
            WorkerTrace(5, (Span(Kind.SEND, "", 2.0, 2.5), Span(Kind.DATA, "x", 2.5, 3.0)), ()),
        ],
        "F0.0": [],
    }


def test_no_trace_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"holds no trace\.json\.gz; a run writes it when .*first_s"
    ):
        read_trace(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no gzip", "cannot read .*Not a gzipped file"),
        (gzip.compress(b"{}")[:-4], r"is not the trace of a run of this version: EOFError"),
        (gzip.compress(b"{"), "is not the trace of a run of this version"),
        (gzip.compress(b"[]"), "is not the trace of a run of this version"),
        (
            gzip.compress(b'{"traceEvents": [{"name": "x", "ph": "X", "pid": 1}]}'),
            "is not the trace",
        ),
    ],
    ids=["not packed", "cut", "no JSON", "a list", "no run's"],  # packed bytes hold the time
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / TRACE_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_trace(tmp_path)
