"""A simulated step in the format of Perfetto and Chrome (trace event format, JSON), as the traces
of runs are: one process per group, whose first thread computes; the others are what comes in.
"""

import gzip
import json
from pathlib import Path
from typing import Any

from disagmoe.schedule.bars import Bar, Chart, Shade

_MICRO = 1e6  # the format counts microseconds


def write_trace(chart: Chart, path: Path) -> None:
    """Write `chart`, gzipped, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    with gzip.open(partial, "wt", encoding="utf-8") as file:
        json.dump({"traceEvents": events(chart), "displayTimeUnit": "ms"}, file)
    partial.replace(path)


def events(chart: Chart) -> list[dict[str, Any]]:
    """All events of `chart`."""
    groups = {name: number for number, name in enumerate(chart.workers, start=1)}
    threads = {name: (number, 0) for name, number in groups.items()}
    found = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        for name, pid in groups.items()
    ]
    for lane, channel in enumerate(chart.channels, start=1):
        receiver = channel.partition(">")[2].partition(".")[0]
        threads[channel] = (groups[receiver], lane)
    for name, (pid, tid) in threads.items():
        label = name if tid else "program"
        found.append(
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": label}}
        )
    return found + [_event(bar, *threads[bar.lane]) for bar in chart.bars]


def _event(bar: Bar, pid: int, tid: int) -> dict[str, Any]:
    waits = bar.shade is Shade.NETWORK
    return {
        "ph": "X",
        "name": str(bar.shade) if bar.mb is None else f"{bar.shade} m{bar.mb}",
        "cat": "transfer" if tid else "recv_wait" if waits else "compute",
        "pid": pid,
        "tid": tid,
        "ts": bar.start * _MICRO,
        "dur": (bar.end - bar.start) * _MICRO,
    }
