"""One step of groups and channels as SVG: as it was, and as it was planned for the same costs."""

from html import escape

from disagmoe.report.rundata import RunData
from disagmoe.report.scale import Scale, ticks
from disagmoe.runtime.measured import measured_chart
from disagmoe.runtime.profile import Profile
from disagmoe.schedule.bars import Bar, Chart, Shade
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.drawing import COLOURS
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.planned import planned_chart
from disagmoe.units import format_seconds

_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 12, 6, 22
_WORKER, _CHANNEL, _GAP = 24, 13, 6
_DIGIT = 6.5


def timeline_html(run: RunData, width: int = 940) -> str:
    """Draw the last traced step of `run` and its plan on one scale of time; '' without a trace."""
    if run.traced is None:
        return ""
    request = programs_for(run.config)
    number = next(iter(run.traced.values())).step
    measured = measured_chart(run.traced, request, f"measured: step {number}")
    costs = OpCosts.from_seconds(Profile.of([run.traced]).costs({}))
    planned = planned_chart(request.build(costs), "planned")
    end = max(measured.makespan, planned.makespan)
    shades = {bar.shade for chart in (measured, planned) for bar in chart.bars}
    keys = "".join(
        f'<span class="key"><i style="background:{_colour(shade)}"></i>{escape(shade)}</span>'
        for shade in Shade
        if shade in shades
    )
    return (
        f'<p class="legend wide">{keys}</p>'
        + _figure(measured, f"Measured: step {number}", end, width)
        + _figure(
            planned,
            "Planned with the costs of that step; without data, sums of gradients and update",
            end,
            width,
        )
    )


def _figure(chart: Chart, title: str, end: float, width: int) -> str:
    x = Scale(0.0, end, _LEFT, width - _RIGHT)
    parts: list[str] = []
    top = float(_TOP)
    for names, height in ((chart.workers, _WORKER), (chart.channels, _CHANNEL)):
        for name in names:
            bars = [bar for bar in chart.bars if bar.lane == name]
            parts.append(
                f'<text class="lane" x="{_LEFT - 6}" y="{top + height / 2 + 3:.1f}" '
                f'text-anchor="end">{escape(name)}</text>'
            )
            parts += [_bar(bar, x, top, height) for bar in bars]
            top += height
        top += _GAP
    for value in ticks(0.0, end, 8):
        parts.append(
            f'<text class="tick" x="{x.at(value):.1f}" y="{top + 12:.0f}" '
            f'text-anchor="middle">{value:.4g} s</text>'
        )
    shares = chart.shares
    numbers = (
        f"{format_seconds(chart.makespan)}, lower bound {format_seconds(chart.bound.time)} "
        f"({chart.bound.name}); utilisation {shares.utilisation:.0%}, exposed communication "
        f"{shares.exposed_communication:.0%}, bubble {shares.bubble:.0%}"
    )
    return (
        f'<figure><figcaption>{escape(title)}<span class="legend">{escape(numbers)}</span>'
        f'</figcaption><div class="scroll"><svg viewBox="0 0 {width} {top + _BOTTOM:.0f}" '
        f'role="img" aria-label="{escape(title)}">{"".join(parts)}</svg></div></figure>'
    )


def _bar(bar: Bar, x: Scale, top: float, height: int) -> str:
    left, right = x.at(bar.start), x.at(bar.end)
    of = "" if bar.mb is None else f", micro-batch {bar.mb}"
    drawn = (
        f'<rect x="{left:.2f}" y="{top + 1:.1f}" width="{max(right - left, 0.3):.2f}" '
        f'height="{height - 2}" fill="{_colour(bar.shade)}">'
        f"<title>{escape(bar.shade)}{of}: {format_seconds(bar.end - bar.start)}</title></rect>"
    )
    if bar.mb is None or height < _WORKER or right - left < _DIGIT * len(str(bar.mb)) + 2:
        return drawn
    return drawn + (
        f'<text class="mb" x="{(left + right) / 2:.1f}" y="{top + height / 2 + 3.5:.1f}" '
        f'text-anchor="middle">{bar.mb}</text>'
    )


def _colour(shade: Shade) -> str:
    """Colours are those of the drawing; what is nobody's work stays in the page's background."""
    return "var(--idle)" if shade is Shade.OTHERS else COLOURS[shade]
