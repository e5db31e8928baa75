"""What `disagmoe schedule show` says of a plan and of a measured run."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from disagmoe.config.load import load_run_config
from disagmoe.errors import ConfigError
from disagmoe.runtime.measured import measured_chart, one_step
from disagmoe.runtime.trace import read_trace
from disagmoe.schedule.accounting import Shares
from disagmoe.schedule.bars import Chart, Shade
from disagmoe.schedule.compile import Compiled
from disagmoe.schedule.from_config import ProgramRequest, programs_for
from disagmoe.schedule.planned import planned_chart
from disagmoe.schedule.render import GroupSummary, summarize


def planned(request: ProgramRequest, compiled: Compiled) -> Chart:
    """The plan of `request`."""
    return planned_chart(compiled, _headline(request))


def measured(run_dir: Path, step: int | None) -> Chart:
    """A traced step of the run in `run_dir`, the last one when None.

    Raises ConfigError where `run_dir` holds no such trace, or no config.
    """
    if not run_dir.is_dir():
        raise ConfigError(f"{run_dir} is no directory; name the directory of a run")
    traces = one_step(read_trace(run_dir), step)
    request = programs_for(load_run_config(run_dir / "config.toml", ()))
    number = next(iter(traces.values())).step
    name = run_dir.resolve().name
    return measured_chart(traces, request, f"step {number} of {name}: {_headline(request)}")


def _headline(request: ProgramRequest) -> str:
    spec, layout = request.spec, request.spec.layout
    rings = f"{layout.rings} rings of " if layout.rings > 1 else ""
    workers = (
        f"{layout.attention_workers} colocated workers"
        if layout.colocated
        else f"({layout.attention_workers} attention + {layout.expert_workers} expert) workers"
    )
    return (
        f"{request.schedule}, {'training' if spec.training else 'evaluation'}: "
        f"{layout.layers} layers on {rings}{layout.groups} x {workers}, "
        f"{spec.micro_batches} micro-batches, {request.in_flight} in flight"
    )


def planned_table(compiled: Compiled, chart: Chart) -> str:
    """One line per group."""
    lines = ["group  utilisation  exposed  bubble  peak slots  instructions"]
    lines += [
        f"{row.group!s:<5}  {_shares(row.shares)}  {row.peak_slots:10d}  {row.instructions:12d}"
        for row in summarize(compiled, chart)
    ]
    return "\n".join(lines)


def measured_table(chart: Chart) -> str:
    """One line per worker."""
    width = max(len("worker"), *map(len, chart.workers))
    lines = [f"{'worker':<{width}}  utilisation  exposed  bubble"]
    lines += [
        f"{worker:<{width}}  {_shares(Shares.of(seconds))}"
        for worker, seconds in chart.seconds.items()
    ]
    return "\n".join(lines)


def _shares(shares: Shares) -> str:
    return (
        f"{100 * shares.utilisation:9.1f} %  {100 * shares.exposed_communication:5.1f} %  "
        f"{100 * shares.bubble:4.1f} %"
    )


def planned_json(request: ProgramRequest, compiled: Compiled, chart: Chart) -> dict[str, Any]:
    """The plan in one object."""
    return {
        "schedule": request.schedule,
        "training": request.spec.training,
        "micro_batches": request.spec.micro_batches,
        "in_flight": request.in_flight,
        **_summary(chart),
        "groups": [_group(row) for row in summarize(compiled, chart)],
        "spans": [
            {
                "group": str(span.group),
                "op": str(span.compute.op),
                "layer": span.compute.layer,
                "micro_batch": span.compute.mb,
                "start": span.start,
                "end": span.end,
            }
            for span in compiled.timeline.spans
        ],
    }


def _group(row: GroupSummary) -> dict[str, Any]:
    return {
        "group": str(row.group),
        **asdict(row.shares),
        "peak_slots": row.peak_slots,
        "instructions": row.instructions,
    }


def measured_json(chart: Chart) -> dict[str, Any]:
    """A step of a run in one object; times are seconds from its begin."""
    return {
        **_summary(chart),
        "workers": [
            {"worker": worker, **asdict(Shares.of(seconds)), "seconds": dict(seconds)}
            for worker, seconds in chart.seconds.items()
        ],
        "bars": [
            {
                "lane": bar.lane,
                "what": str(bar.shade),
                "micro_batch": bar.mb,
                "start": bar.start,
                "end": bar.end,
            }
            for bar in chart.bars
            if bar.shade is not Shade.OTHERS
        ],
    }


def _summary(chart: Chart) -> dict[str, Any]:
    return {
        "makespan": chart.makespan,
        "lower_bound": chart.bound.time,
        "bound": chart.bound.name,
        "gap": chart.gap,
        **asdict(chart.shares),
    }
