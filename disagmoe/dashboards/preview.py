"""Dashboards as pictures, from Prometheus' HTTP API: to look at real data without a Grafana."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from disagmoe.dashboards.panel import COLUMNS, Dashboard, Panel, Place, Unit, View, places
from disagmoe.dashboards.prometheus import Prometheus, Series
from disagmoe.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_IN = 16.0
_ROW_IN = 0.36
"""Height of a row of the grid."""
_POINTS = 240
_LABEL = re.compile(r"\{\{(\w+)\}\}")
_MOST_IN_LEGEND = 12
_AIR = 1.06
"""Height of an axis over its largest value."""
_BY_BINARY = frozenset({Unit.BYTES, Unit.BYTES_PER_S})
_TICKS = 5


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    series: Series


def draw(
    board: Dashboard,
    server: Prometheus,
    path: Path,
    *,
    run: str,
    window: str,
    start_s: float,
    end_s: float,
) -> None:
    """Draw all panels of `board` as they are between two moments. Raises PrometheusError."""
    from matplotlib.figure import Figure

    tops, top = [], 0
    for row in board.rows:
        found, after = places(row, top)
        tops.append((row, found, top))
        top = after
    figure = Figure(figsize=(_WIDTH_IN, top * _ROW_IN + 0.5), facecolor="#fafafa")
    figure.text(0.01, 1 - 0.2 / (top * _ROW_IN + 0.5), board.title, fontsize=13, weight="bold")
    step_s = max((end_s - start_s) / _POINTS, 1.0)
    for row, found, headline in tops:
        figure.text(0.01, _up(figure, headline + 0.8), row.title, fontsize=10.5, color="#555555")
        for panel, place in zip(row.panels, found, strict=True):
            lines = [
                _Line(_name(query.legend, series), series)
                for query in panel.queries
                for series in server.over(
                    query.expr.replace("$run", run).replace("$window", window),
                    start_s,
                    end_s,
                    step_s,
                )
            ]
            _panel(figure, panel, place, _without_run(lines), start_s)
    figure.savefig(path, dpi=80)


def _up(figure: "Figure", row: float) -> float:
    height_in = float(figure.get_figheight())
    return 1 - (0.5 + row * _ROW_IN) / height_in


def _name(legend: str, series: Series) -> str:
    return _LABEL.sub(lambda match: series.labels.get(match[1], ""), legend).strip()


def _without_run(lines: Sequence[_Line]) -> list[_Line]:
    """Leave the name of the run out of the names of lines that all belong to one."""
    runs = {line.series.labels.get("run", "") for line in lines}
    if len(runs) != 1:
        return list(lines)
    (run,) = runs
    return [_Line(line.name.removeprefix(run).strip() or run, line.series) for line in lines]


def _panel(
    figure: "Figure", panel: Panel, place: Place, lines: Sequence[_Line], start_s: float
) -> None:
    height_in = float(figure.get_figheight())
    left = (place.x + 1.35) / COLUMNS
    width = (place.width - 1.65) / COLUMNS
    bottom = _up(figure, place.y + place.height - 0.9)
    axes = figure.add_axes((left, bottom, width, (place.height - 2.2) * _ROW_IN / height_in))
    axes.set_title(panel.title, fontsize=9, loc="left", pad=4)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    if not lines:
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes, color="#bb0000")
        return
    axes.xaxis.set_major_formatter(lambda value, _: format_seconds(value) if value else "0")
    match panel.view:
        case View.STAT | View.TABLE:
            _stat(axes, panel, lines)
        case View.STATES | View.HEATMAP:
            _cells(figure, axes, panel, lines, start_s)
        case View.LINES | View.STACK:
            _lines(axes, panel, lines, start_s)


def _stat(axes: "Axes", panel: Panel, lines: Sequence[_Line]) -> None:
    axes.axis("off")
    for number, line in enumerate(lines):
        text = line.name if panel.view is View.TABLE else formatted(line.series.last, panel.unit)
        size = 8 if panel.view is View.TABLE else 20 / len(lines) ** 0.5
        y = 1 - (number + 0.5) / len(lines)
        axes.text(0.5, y, text, ha="center", va="center", fontsize=size)


def _lines(axes: "Axes", panel: Panel, lines: Sequence[_Line], start_s: float) -> None:
    if panel.view is View.STACK:
        times = lines[0].series.times_s
        whole = [line for line in lines if line.series.times_s == times]
        axes.stackplot(
            [t - start_s for t in times],
            [line.series.values for line in whole],
            labels=[line.name for line in whole],
        )
    else:
        for line in lines:
            times_s = [t - start_s for t in line.series.times_s]
            axes.plot(times_s, line.series.values, label=line.name, linewidth=1.1)
    if panel.log_scale:
        axes.set_yscale("log", base=2)
    if panel.low is not None and panel.view is View.STACK:
        axes.set_ylim(panel.low, panel.high)
    elif panel.low is not None:
        largest = max((v for line in lines for v in line.series.values if v == v), default=0.0)
        axes.set_ylim(panel.low, panel.high or _AIR * largest or 1.0)
    if panel.unit in _BY_BINARY and not panel.log_scale:
        axes.set_yticks(binary_ticks(axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(lambda value, _: formatted(value, panel.unit))
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    if len(lines) <= _MOST_IN_LEGEND:
        axes.legend(fontsize=6, ncols=2, loc="best", framealpha=0.7, edgecolor="none")


def _cells(
    figure: "Figure", axes: "Axes", panel: Panel, lines: Sequence[_Line], start_s: float
) -> None:
    """A row of colours per series, the first at the top."""
    from matplotlib.colors import Normalize

    ordered = sorted(lines, key=lambda line: line.name)
    low = min(min(line.series.values) for line in ordered) if panel.low is None else panel.low
    high = max(max(line.series.values) for line in ordered) if panel.high is None else panel.high
    scale = Normalize(low, high if high > low else low + 1)
    colours = "RdYlGn" if panel.view is View.STATES else "Oranges"
    shown = None
    for number, line in enumerate(ordered):
        times = [t - start_s for t in line.series.times_s]
        step = times[1] - times[0] if len(times) > 1 else 1.0
        edges = [*times, times[-1] + step]
        shown = axes.pcolormesh(
            edges,
            [number, number + 0.9],
            [line.series.values],
            cmap=colours,
            norm=scale,
        )
    axes.set_yticks([n + 0.45 for n in range(len(ordered))], [line.name for line in ordered])
    axes.invert_yaxis()
    if shown is not None:
        bar = figure.colorbar(shown, ax=axes, pad=0.01, fraction=0.02)
        bar.ax.tick_params(labelsize=6)
        bar.ax.yaxis.set_major_formatter(lambda value, _: formatted(value, panel.unit))


def binary_ticks(largest: float) -> list[float]:
    """Return some values from 0 to `largest` that are round in binary units."""
    if largest <= 0:
        return [0.0]
    step = 2.0 ** math.ceil(math.log2(largest / _TICKS))
    return [number * step for number in range(int(largest / step) + 1)]


def formatted(value: float, unit: Unit) -> str:
    """Return `value` as a person reads it."""
    match unit:
        case Unit.RATIO:
            return f"{100 * value:.3g} %"
        case Unit.SECONDS:
            return format_seconds(value) if value else "0"
        case Unit.BYTES:
            return format_bytes(value)
        case Unit.BYTES_PER_S:
            return f"{format_bytes(value)}/s"
        case Unit.PER_S:
            return f"{value:.3g}/s"
        case Unit.NONE:
            return format_count(value) if abs(value) >= 1000 else f"{value:.4g}"
