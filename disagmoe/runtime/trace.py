"""What workers did when, in the format of Perfetto and Chrome (trace event format, JSON).

One process per worker; its first thread holds what the program did, the others one channel each.
"""

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disagmoe.runtime.clock import Span

TRACE_FILE = "trace.json.gz"
_MICRO = 1e6  # the format counts microseconds


@dataclass(frozen=True, slots=True)
class Hop:
    """One worker's end of a transfer until it was complete: a send from its post, a receive from
    when all senders had handed over and this worker had posted it."""

    channel: str
    label: str
    """Layer and micro-batch, as `L3 m0`."""
    sends: bool
    nbytes: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class WorkerTrace:
    """One worker's spans and hops of one step; times are those of the first worker's clock."""

    step: int
    spans: tuple[Span, ...]
    hops: tuple[Hop, ...]


def chrome_events(worker: str, pid: int, traces: Iterable[WorkerTrace]) -> list[dict[str, Any]]:
    """Return the events of one worker."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": worker}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}},
        _thread(pid, 0, "program"),
    ]
    lanes: dict[str, int] = {}
    for trace in traces:
        for span in trace.spans:
            events.append(
                {
                    "ph": "X",
                    "name": span.label or str(span.kind),
                    "cat": str(span.kind),
                    "pid": pid,
                    "tid": 0,
                    "ts": span.start_s * _MICRO,
                    "dur": (span.end_s - span.start_s) * _MICRO,
                    "args": {"kind": str(span.kind), "step": trace.step},
                }
            )
        for hop in trace.hops:
            if hop.channel not in lanes:
                lanes[hop.channel] = len(lanes) + 1
                events.append(_thread(pid, lanes[hop.channel], hop.channel))
            events.append(
                {
                    "ph": "X",
                    "name": f"{'send' if hop.sends else 'recv'} {hop.label}",
                    "cat": "transfer",
                    "pid": pid,
                    "tid": lanes[hop.channel],
                    "ts": hop.start_s * _MICRO,
                    "dur": (hop.end_s - hop.start_s) * _MICRO,
                    "args": {"bytes": hop.nbytes, "channel": hop.channel, "step": trace.step},
                }
            )
    return events


def _thread(pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def write_trace(path: Path, workers: Mapping[str, Iterable[WorkerTrace]]) -> None:
    """Write `trace.json.gz` whole or not at all; workers in the given order, times from 0."""
    events = [
        event
        for pid, (worker, traces) in enumerate(workers.items(), start=1)
        for event in chrome_events(worker, pid, traces)
    ]
    begin = min((event["ts"] for event in events if "ts" in event), default=0.0)
    for event in events:
        if "ts" in event:
            event["ts"] -= begin
    partial = path.with_name(path.name + ".partial")
    with gzip.open(partial, "wt", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)
    partial.replace(path)
