"""Charts as SVG text that takes its colours from the page."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from disagmoe.report.scale import Scale, extent, thinned, ticks

Points = Sequence[tuple[float, float]]
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 8, 24
_MOST_POINTS = 500
_PALETTE = 8


def line_chart(
    title: str,
    lines: Mapping[str, Points],
    show: Callable[[float], str],
    *,
    width: int = 460,
    height: int = 190,
    low: float | None = None,
    high: float | None = None,
) -> str:
    """Draw values over steps; `show` writes a value. What is not finite is a gap."""
    drawn = {name: thinned(_finite(points), _MOST_POINTS) for name, points in lines.items()}
    drawn = {name: points for name, points in drawn.items() if points}
    if not drawn:
        return _nothing(title)
    xs = [x for points in drawn.values() for x, _ in points]
    bottom, top = extent([y for points in drawn.values() for _, y in points])
    bottom, top = (bottom if low is None else low), (top if high is None else high)
    x_scale = Scale(min(xs), max(xs), _LEFT, width - _RIGHT)
    y_scale = Scale(bottom, top, height - _BOTTOM, _TOP)
    parts = [_grid(x_scale, y_scale, show, width, height)]
    for number, points in enumerate(drawn.values()):
        path = " ".join(f"{x_scale.at(x):.1f},{y_scale.at(y):.1f}" for x, y in points)
        colour = f"c{number % _PALETTE}"
        if len(points) == 1:
            x, y = points[0]
            parts.append(
                f'<circle class="dot {colour}" cx="{x_scale.at(x):.1f}" '
                f'cy="{y_scale.at(y):.1f}" r="3"/>'
            )
        else:
            parts.append(f'<polyline class="line {colour}" points="{path}"/>')
    data = {
        name: [[round(x_scale.at(x), 1), round(x), show(y)] for x, y in points]
        for name, points in drawn.items()
    }
    return (
        f"<figure><figcaption>{escape(title)}{_legend(list(drawn))}</figcaption>"
        f'<svg viewBox="0 0 {width} {height}" class="chart" role="img" '
        f'aria-label="{escape(title)}" data-points="{escape(json.dumps(data))}">'
        f"{''.join(parts)}</svg></figure>"
    )


def _nothing(title: str) -> str:
    caption = f"<figcaption>{escape(title)}</figcaption>"
    return f'<figure>{caption}<p class="none">none yet</p></figure>'


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(y)]


def _grid(x: Scale, y: Scale, show: Callable[[float], str], width: int, height: int) -> str:
    parts = []
    for value in ticks(y.low, y.high, 5):
        at = y.at(value)
        right = width - _RIGHT
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{at + 3.5:.1f}" text-anchor="end">'
            f"{escape(show(value))}</text>"
        )
    for value in ticks(x.low, x.high, 7):
        if value == int(value):
            parts.append(
                f'<text class="tick" x="{x.at(value):.1f}" y="{height - 8}" '
                f'text-anchor="middle">{int(value)}</text>'
            )
    return _steps_label(height - 8) + "".join(parts)


def _steps_label(y: float) -> str:
    return f'<text class="tick" x="{_LEFT - 6}" y="{y:.0f}" text-anchor="end">step</text>'


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    items = (
        f'<span class="key"><i class="c{number % _PALETTE}"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return f'<span class="legend">{"".join(items)}</span>'


def heatmap(
    title: str,
    rows: Sequence[Points],
    show: Callable[[float], str],
    *,
    first_layer: int = 0,
    width: int = 940,
) -> str:
    """Draw a row of colours per layer over steps, from `first_layer` on; darker is larger, `1` is
    the lightest."""
    most = 160
    thin = [thinned(_finite(row), most) for row in rows]
    if not any(thin):
        return _nothing(title)
    values = [y for row in thin for _, y in row]
    low, high = min(values), max(values)
    cell = max(4.0, min(18.0, 360 / len(rows)))
    height = _TOP + cell * len(rows) + _BOTTOM
    first, last = thin[0][0][0], thin[0][-1][0]
    x_scale = Scale(first, max(last, first + 1), _LEFT, width - _RIGHT)
    parts = [_steps_label(height - 8)]
    for number, row in enumerate(thin):
        layer = first_layer + number
        y = _TOP + number * cell
        wide = (width - _RIGHT - _LEFT) / len(row)
        for place, (x, value) in enumerate(row):
            strength = (value - low) / ((high - low) or 1.0)
            parts.append(
                f'<rect class="cell" x="{_LEFT + place * wide:.1f}" y="{y:.1f}" '
                f'width="{wide + 0.3:.1f}" height="{cell - 0.5:.1f}" '
                f'fill-opacity="{0.06 + 0.94 * strength:.2f}">'
                f"<title>layer {layer}, step {round(x)}: {escape(show(value))}</title></rect>"
            )
        if cell >= 9 or number % math.ceil(12 / cell) == 0:
            parts.append(
                f'<text class="tick" x="{_LEFT - 6}" y="{y + cell / 2 + 3.5:.1f}" '
                f'text-anchor="end">{layer}</text>'
            )
    for value in ticks(first, last, 10):
        if value == int(value):
            parts.append(
                f'<text class="tick" x="{x_scale.at(value):.1f}" y="{height - 8:.0f}" '
                f'text-anchor="middle">{int(value)}</text>'
            )
    span = f'<span class="legend">from {escape(show(low))} (light) to {escape(show(high))}</span>'
    return (
        f"<figure><figcaption>{escape(title)}{span}</figcaption>"
        f'<div class="scroll"><svg viewBox="0 0 {width} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg></div></figure>'
    )
