"""What workers did when, in the format of Perfetto and Chrome (trace event format, JSON).

One process per worker; its first thread holds what the program did, the others one channel each.
"""

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disagmoe.errors import ConfigError
from disagmoe.runtime.clock import Span
from disagmoe.schedule.accounting import Kind

TRACE_FILE = "trace.json.gz"
_TRANSFER, _SEND, _RECEIVE = "transfer", "send", "recv"
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
                    "name": f"{_SEND if hop.sends else _RECEIVE} {hop.label}",
                    "cat": _TRANSFER,
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


def read_trace(run_dir: Path) -> dict[str, list[WorkerTrace]]:
    """Return what `write_trace` has written to `run_dir`: the traced steps of each worker.

    Raises:
        ConfigError: there is no trace, or none of this version.
    """
    path = run_dir / TRACE_FILE
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        workers = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        timed: dict[int, list[Mapping[str, Any]]] = {pid: [] for pid in workers}
        for event in events:
            if event["ph"] == "X":
                timed[event["pid"]].append(event)
        return {name: _worker_traces(timed[pid]) for pid, name in workers.items()}
    except FileNotFoundError:
        raise ConfigError(
            f"{run_dir} holds no {TRACE_FILE}; a run writes it when it has done the steps that "
            "[trace] of its config names (trace.first_step, trace.steps)"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    except (EOFError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not the trace of a run of this version: {error!r}") from error


def _worker_traces(events: Iterable[Mapping[str, Any]]) -> list[WorkerTrace]:
    """Read the events of one worker that have a duration back into its steps."""
    steps: dict[int, tuple[list[Span], list[Hop]]] = {}
    for event in events:
        args, name = event["args"], event["name"]
        start_s = event["ts"] / _MICRO
        end_s = start_s + event["dur"] / _MICRO
        spans, hops = steps.setdefault(args["step"], ([], []))
        if event["cat"] == _TRANSFER:
            way, _, label = name.partition(" ")
            hops.append(Hop(args["channel"], label, way == _SEND, args["bytes"], start_s, end_s))
        else:
            kind = Kind(args["kind"])
            spans.append(Span(kind, "" if name == kind else name, start_s, end_s))
    return [WorkerTrace(step, tuple(spans), tuple(hops)) for step, (spans, hops) in steps.items()]
