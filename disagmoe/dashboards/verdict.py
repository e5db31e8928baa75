"""What Prometheus makes of every expression, and of what a run has written down itself."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from disagmoe.dashboards.catalogue import DASHBOARDS
from disagmoe.dashboards.prometheus import Prometheus, PrometheusError, Series, has_numbers
from disagmoe.dashboards.promql import BUBBLE, share
from disagmoe.dashboards.rules import ALERTS, RECORDS
from disagmoe.metrics import catalogue
from disagmoe.runtime.clock import seconds_by_kind
from disagmoe.runtime.trace import WorkerTrace
from disagmoe.schedule.accounting import BUSY, EXPOSED, Kind, Shares, add_up
from disagmoe.schedule.layout import Worker

_CLOSE = 1e-9
"""Prometheus stores and prints fp64; sums are made in the same order, but for the last digits."""
_POINTS = 0.03
"""By how much shares of time may miss those of the trace."""
_WALL_SHARE = 0.02
"""By how much the kinds of time may miss wall time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of all expressions."""

    expressions: int
    empty: tuple[str, ...]
    """Those without a value, or with one that is no number."""
    errors: tuple[str, ...]
    """Those that are refused, and values that are not those of the run."""


@dataclass(frozen=True, slots=True)
class _Asked:
    where: str
    expr: str
    may_be_empty: bool = False


def filled(expr: str, run: str, window: str) -> str:
    """Return `expr` with its variables replaced."""
    name = re.escape(run).replace("\\", "\\\\")  # escapes of a string in an expression
    return expr.replace("$run", name).replace("$window", window)


def judge(server: Prometheus, run: str, window: str, at_s: float) -> Verdict:
    """Evaluate every expression of every panel and rule at a moment of `run`."""
    asked = list(_all_expressions(run, window))
    empty, errors = [], []
    for one in asked:
        try:
            found = server.at(one.expr, at_s)
        except PrometheusError as error:
            errors.append(f"{one.where}: {error}")
            continue
        if not has_numbers(found) and not one.may_be_empty:
            empty.append(f"{one.where}: {one.expr}")
    return Verdict(len(asked), tuple(empty), tuple(errors))


def _all_expressions(run: str, window: str) -> Iterator[_Asked]:
    for board in DASHBOARDS:
        for panel in board.panels:
            for query in panel.queries:
                yield _Asked(f"{board.uid}, {panel.title}", filled(query.expr, run, window))
    for record in RECORDS:
        yield _Asked(record.name, record.expr)
        yield _Asked(f"{record.name} as recorded", record.name)
    for alert in ALERTS:
        yield _Asked(f"{alert.name}, its value", alert.value)
        yield _Asked(f"{alert.name}, as a number", alert.expr_as_number)
        yield _Asked(alert.name, alert.expr, may_be_empty=True)


def read_steps(run_dir: Path) -> list[dict[str, Any]]:
    """Return what the run has logged of its steps."""
    text = (run_dir / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def compare(server: Prometheus, steps: Sequence[Mapping[str, Any]], at_s: float) -> list[str]:
    """Return where Prometheus differs at a moment from what the run has logged of its steps.

    The driver and each worker say themselves how many steps they have done by then.
    """
    found: list[str] = []
    done = int(_one(server, catalogue.STEPS.name, at_s))
    so_far, last = steps[:done], steps[done - 1]
    expected = {
        catalogue.TOKENS.name: sum(step["tokens"] for step in so_far),
        catalogue.STEP_SECONDS.name: sum(step["step_s"] for step in so_far),
        catalogue.SKIPPED_STEPS.name: sum(bool(step["skipped"]) for step in so_far),
        catalogue.PROGRESS.name: done,
        catalogue.LOSS.name: last["loss"],
        catalogue.GRAD_NORM.name: last["grad_norm"],
        catalogue.LEARNING_RATE.name: last["lr"],
        catalogue.BALANCE_LOSS.name: last["balance"],
        catalogue.Z_LOSS.name: last["z"],
        f"max({catalogue.EXPERT_LOAD.name})": max(last["expert_load"]),
        f"max({catalogue.EXPERT_VARIATION.name})": max(last["expert_variation"]),
        f"sum({catalogue.DEAD_EXPERTS.name})": sum(last["dead_experts"]),
    }
    for expr, value in expected.items():
        found += _differs(expr, _one(server, expr, at_s), value)
    if held_out := [step["eval_loss"] for step in so_far if "eval_loss" in step]:
        found += _differs(
            catalogue.EVAL_LOSS.name, _one(server, catalogue.EVAL_LOSS.name, at_s), held_out[-1]
        )
    for worker in last["seconds"]:
        found += _worker_differs(server, worker, steps, at_s)
    return found


def _worker_differs(
    server: Prometheus, worker: str, steps: Sequence[Mapping[str, Any]], at_s: float
) -> Iterator[str]:
    me = f'{{instance="{worker}"}}'
    done = int(_one(server, catalogue.WORKER_STEPS.name + me, at_s))
    so_far = steps[:done]
    total = 0.0
    for kind in Kind:
        where = f'{catalogue.SECONDS.name}{{instance="{worker}",kind="{kind}"}}'
        value = _one(server, where, at_s)
        total += value
        yield from _differs(where, value, sum(step["seconds"][worker][kind] for step in so_far))
    peak = catalogue.PEAK_MEMORY.name + me
    largest = so_far[-1]["peak_memory_bytes"][worker]
    yield from _differs(peak, _one(server, peak, at_s), largest)
    wall = _one(server, catalogue.WALL_SECONDS.name + me, at_s)
    if abs(total - wall) > _WALL_SHARE * wall:
        yield f"{worker}: kinds of time add up to {total:.3f} s of {wall:.3f} s"


def compare_channels(
    server: Prometheus, steps: Sequence[Mapping[str, Any]], at_s: float
) -> list[str]:
    """Return the channels whose bytes differ, where all workers have done the same steps."""
    workers = server.at(catalogue.WORKER_STEPS.name, at_s)
    done = {int(one.last) for one in workers}
    if len(done) > 1:
        return []
    so_far = steps[: done.pop()]
    found: list[str] = []
    for metric, key in (
        (catalogue.CHANNEL_BYTES, "channel_bytes"),
        (catalogue.CHANNEL_MESSAGES, "channel_messages"),
    ):
        for channel in {name for step in so_far for name in step[key]}:
            expr = f'sum({metric.name}{{channel="{channel}"}})'
            value = sum(step[key].get(channel, 0) for step in so_far)
            found += _differs(expr, _one(server, expr, at_s), value)
    return found


def compare_result(
    server: Prometheus,
    steps: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
    at_s: float,
) -> list[str]:
    """Return where `result.json` differs from the steps that the run has logged, its MFU from the
    FLOPs and peaks that Prometheus has at a moment.

    With `compare` every figure of a panel that is in `result.json` comes from the same numbers.
    """
    timed = steps[1:]
    rate = sum(step["tokens"] for step in timed) / sum(step["step_s"] for step in timed)
    per_token = f"{catalogue.MODEL_FLOPS.name} / {catalogue.TOKENS.name}"
    share_per_rate = f"sum({per_token}) / sum({catalogue.PEAK_FLOPS.name})"
    logged = {
        "steps": len(steps),
        "skipped_steps": sum(bool(step["skipped"]) for step in steps),
        "tokens": sum(step["tokens"] for step in steps),
        "first_loss": steps[0]["loss"],
        "last_loss": steps[-1]["loss"],
        "tokens_per_s": rate,
        "mfu": rate * _one(server, share_per_rate, at_s),
    }
    found: list[str] = []
    for key, value in logged.items():
        found += _differs(f"{key} of result.json", result[key], value)
    for worker, peak in result["peak_memory_bytes"].items():
        largest = max(step["peak_memory_bytes"][worker] for step in steps)
        found += _differs(f"peak memory of {worker} in result.json", peak, largest)
    for group, shares in result["shares"].items():
        members = (
            seconds
            for step in timed
            for worker, seconds in step["seconds"].items()
            if str(Worker.parse(worker).group) == group
        )
        for name, value in asdict(Shares.of(add_up(members))).items():
            found += _differs(f"{name} of {group} in result.json", shares[name], value)
    return found


def compare_trace(
    server: Prometheus,
    traces: Mapping[str, Sequence[WorkerTrace]],
    window_s: int,
    at_s: float,
) -> list[str]:
    """Return where the shares of a worker's time in a window, as panels show them, differ from
    those of the traced steps that ended in it: between its first and its last scrape, from which
    Prometheus works out rates."""
    found: list[str] = []
    for worker, traced in traces.items():
        me = f'instance="{worker}"'
        steps = f"{catalogue.WORKER_STEPS.name}{{{me}}}"
        scraped = _only(server, f"{steps}[{window_s}s]", at_s).values
        ended = range(int(scraped[0]), int(scraped[-1]))
        spans = [seconds_by_kind(trace.spans) for trace in traced if trace.step in ended]
        if len(spans) < len(ended) or not spans:
            found.append(f"{worker}: {len(spans)} of the steps {ended} are traced")
            continue
        shares = Shares.of(add_up(spans))
        for name, chosen, expected in (
            ("utilisation", BUSY, shares.utilisation),
            ("exposed communication", EXPOSED, shares.exposed_communication),
            ("bubble", BUBBLE, shares.bubble),
        ):
            value = _one(server, share(chosen, "instance", me, f"{window_s}s"), at_s)
            if abs(value - expected) > _POINTS:
                found.append(f"{worker}: {name} is {value:.1%}, the trace says {expected:.1%}")
    return found


def _one(server: Prometheus, expr: str, at_s: float) -> float:
    return _only(server, expr, at_s).last


def _only(server: Prometheus, expr: str, at_s: float) -> Series:
    found = server.at(expr, at_s)
    if len(found) != 1:
        raise PrometheusError(f"{expr} has {len(found)} values, expected one")
    return found[0]


def _differs(what: str, found: float, expected: float) -> Iterator[str]:
    if abs(found - expected) > _CLOSE * max(abs(expected), 1.0):
        yield f"{what} is {found:g}, the run says {expected:g}"
