"""The page: its parts in order, one function each."""

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from disagmoe.report.charts import Points, heatmap, line_chart
from disagmoe.report.rundata import RunData
from disagmoe.report.style import CSS, SCRIPT
from disagmoe.report.timeline import timeline_html
from disagmoe.units import format_bytes, format_count, format_seconds

_LATELY = 20
"""Steps that figures of a run under way are taken from."""


def report_html(run: RunData, now: time.struct_time) -> str:
    """Return the report of `run` as one file that needs nothing else."""
    body = "\n".join(
        part
        for part in (
            _headline(run, now),
            _tiles(run),
            _section("Learning", _learning(run)),
            _section("What becomes of the time", _time(run)),
            _section("One step", timeline_html(run) or _none("no step is traced yet")),
            _section("Experts", _experts(run)),
            _section("Channels", _channels(run)),
            _section("Memory", _memory(run)),
            _section("Events", _events(run)),
            _section("Config", _config(run)),
        )
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(run.path.name)} - DisagMoE</title>\n<style>{CSS}</style>\n</head>\n"
        f"<body><main>\n{body}\n</main><script>{SCRIPT}</script></body>\n</html>\n"
    )


def _headline(run: RunData, now: time.struct_time) -> str:
    config = run.config
    made = time.strftime("%Y-%m-%d %H:%M:%S", now)
    sub = (
        f"{config.parallel.summary}, {config.parallel.schedule}, {config.cluster.device}, "
        f"{config.train.precision}; as of {made}"
    )
    error = (run.result or {}).get("first_error")
    wrong = f'<pre class="error">{escape(error)}</pre>' if error else ""
    return (
        f'<h1>{escape(run.path.name)} <span class="pill {run.status}">{run.status}</span></h1>'
        f'<p class="sub">{escape(sub)}</p>{wrong}'
    )


def _tiles(run: RunData) -> str:
    if not run.steps:
        return _none("no step is done yet")
    lately, last = run.steps[-_LATELY:], run.steps[-1]
    done = last["step"] + 1
    step_s = statistics.median(step["step_s"] for step in lately)
    tokens = sum(step["tokens"] for step in lately)
    tiles = [
        (f"{done} of {run.config.train.steps}", "steps"),
        (_number(last["loss"]), "loss"),
        (format_count(tokens / sum(step["step_s"] for step in lately)), "tokens/s"),
        (format_seconds(step_s), "per step"),
    ]
    evaluated = [step["eval_loss"] for step in run.steps if "eval_loss" in step]
    if evaluated:
        tiles.insert(2, (_number(evaluated[-1]), "held-out loss"))
    if run.result is None:
        left = run.config.train.steps - done
        tiles.append((format_seconds(left * step_s), "left"))
    else:
        tiles.append((format_seconds(run.result["elapsed_s"]), "in all"))
        if run.result["mfu"] is not None:
            tiles.append((f"{run.result['mfu']:.1%}", "MFU"))
    shown = (f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for value, name in tiles)
    return f'<div class="tiles">{"".join(shown)}</div>'


def _learning(run: RunData) -> str:
    loss = {"training": _over_steps(run, "loss"), "held out": _over_steps(run, "eval_loss")}
    charts = [
        line_chart("Loss, nats per token", loss, _number),
        line_chart("Gradient norm", {"": _over_steps(run, "grad_norm")}, _number),
        line_chart("Learning rate", {"": _over_steps(run, "lr")}, _number, low=0.0),
        line_chart("Tokens/s", {"": _over_steps(run, "tokens_per_s")}, format_count, low=0.0),
    ]
    return f'<div class="charts wide">{"".join(charts)}</div>'


def _time(run: RunData) -> str:
    names = (
        ("utilisation", "Utilisation"),
        ("exposed_communication", "Exposed communication"),
        ("bubble", "Bubble"),
    )
    charts = []
    for key, title in names:
        lines: dict[str, list[tuple[float, float]]] = {}
        for step in run.steps:
            for group, shares in step["shares"].items():
                lines.setdefault(group, []).append((step["step"] + 1, shares[key]))
        charts.append(line_chart(title, lines, _percent, low=0.0, high=1.0, width=330))
    return f'<div class="charts">{"".join(charts)}</div>'


def _experts(run: RunData) -> str:
    layers = len(run.steps[0]["expert_load"]) if run.steps else 0
    rows = [
        [(step["step"] + 1, step["expert_load"][layer]) for step in run.steps]
        for layer in range(layers)
    ]
    shown = heatmap(
        "Busiest expert over the mean, by layer and step",
        rows,
        lambda v: f"{v:.2f}",
        first_layer=run.config.model.dense_layers,
    )
    if not run.steps:
        return shown
    last = run.steps[-1]
    return shown + _table(
        ("last step", "mean of layers", "worst layer"),
        [
            ("busiest expert over the mean", *_mean_and_max(last["expert_load"])),
            ("coefficient of variation", *_mean_and_max(last["expert_variation"])),
            ("experts without a choice", *_mean_and_max(last["dead_experts"])),
        ],
    )


def _mean_and_max(values: Sequence[float]) -> tuple[str, str]:
    return f"{statistics.fmean(values):.2f}", f"{max(values):.2f}"


def _channels(run: RunData) -> str:
    if not run.steps:
        return _none("no step is done yet")
    lately = run.steps[-_LATELY:]
    step_s = statistics.median(step["step_s"] for step in lately)
    rows = []
    for channel in dict.fromkeys(name for step in lately for name in step["channel_bytes"]):
        nbytes = statistics.median(step["channel_bytes"].get(channel, 0) for step in lately)
        messages = statistics.median(step["channel_messages"].get(channel, 0) for step in lately)
        rows.append(
            (
                channel,
                format_bytes(nbytes),
                f"{messages:.0f}",
                f"{format_bytes(nbytes / step_s)}/s",
            )
        )
    return _table(("channel", "bytes per step", "messages per step", "mean rate"), rows)


def _memory(run: RunData) -> str:
    if not run.steps:
        return _none("no step is done yet")
    peaks: Mapping[str, int] = run.steps[-1]["peak_memory_bytes"]
    largest = max(peaks.values()) or 1
    rows = "".join(
        f'<tr><td>{escape(worker)}</td><td class="n">{format_bytes(count)}</td>'
        f'<td style="width:60%"><span class="bar" style="width:{100 * count / largest:.1f}%">'
        "</span></td></tr>"
        for worker, count in peaks.items()
    )
    return f'<table><tr><th>worker</th><th class="n">peak</th><th></th></tr>{rows}</table>'


def _events(run: RunData) -> str:
    rows = list(_told(run))
    if not rows:
        return _none("none")
    lines = (f'<tr><td class="n">{step}</td><td>{escape(text)}</td></tr>' for step, text in rows)
    head = '<tr><th class="n narrow">step</th><th>event</th></tr>'
    return f"<table>{head}{''.join(lines)}</table>"


def _told(run: RunData) -> Iterator[tuple[str, str]]:
    restarts = 0
    for step in run.steps:
        if step["restarts"] > restarts:
            yield str(step["step"] + 1), "the first step after the workers were started again"
        restarts = step["restarts"]
        if step["skipped"]:
            yield str(step["step"] + 1), f"no update, because {step['skipped']}"
    if run.result is not None:
        for cause, count in run.result["restarts"].items():
            yield "", f"workers started again {count} x, cause: {cause}"
        if run.result["checkpoint"]:
            yield "", f"last checkpoint {run.result['checkpoint']}"
        yield str(run.result["steps"]), f"end: {run.result['status']}"


def _config(run: RunData) -> str:
    versions = (run.result or {}).get("versions", {})
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"<details><summary>config.toml{f' ({escape(said)})' if said else ''}</summary>"
        f"<pre>{escape(run.config_text)}</pre></details>"
    )


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{content}"


def _none(text: str) -> str:
    return f'<p class="none">{escape(text)}</p>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        first, *rest = cells
        numbers = "".join(f'<{tag} class="n">{escape(cell)}</{tag}>' for cell in rest)
        return f"<tr><{tag}>{escape(first)}</{tag}>{numbers}</tr>"

    return f"<table>{line('th', head)}{''.join(line('td', row) for row in rows)}</table>"


def _over_steps(run: RunData, key: str) -> Points:
    return [(step["step"] + 1, step[key]) for step in run.steps if step.get(key) is not None]


def _number(value: Any) -> str:
    return "not a number" if value is None else f"{value:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
