"""Pictures of a reproduction; matplotlib is imported when they are drawn."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disagmoe.reproduce.bandwidth import SPEEDS, sensitivity
from disagmoe.reproduce.figures import division, speed, stages, sweep
from disagmoe.reproduce.figures.base import setting, short
from disagmoe.reproduce.models import LENGTHS, MODELS
from disagmoe.reproduce.rooflines import Point, points
from disagmoe.reproduce.row import Row
from disagmoe.reproduce.run import Reproduction
from disagmoe.reproduce.setting import CALIBRATIONS
from disagmoe.units import TERA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEADLINE = CALIBRATIONS[0]
_COLOURS = {"attention": "#2f6fb5", "experts": "#d9791e"}
_OF_CALIBRATION = dict(zip(CALIBRATIONS, ("#2f6fb5", "#8d62b3", "#3f8f5c"), strict=True))
_OF_SYSTEM = {"split": "#2f6fb5", "tutel": "#b0b7bf", "dualpipe": "#d9791e"}
_BAND = "#e8eef5"
_TFLOPS = (20, 50, 100, 200, 400)
"""Marks of a roofline."""
_CLAIMS = {
    "5": "share of a step that opponents leave exposed",
    "6a": "shares of a layer's time (hollow: fitted)",
    "11": "communication that nothing hides",
}
"""Figures that are drawn claim by claim."""


def draw(found: Reproduction, folder: Path) -> None:
    """Write a picture for each experiment that has one, rooflines and the network's influence."""
    for name, figure in _figures(found):
        figure.savefig(folder / f"{name}.png", dpi=130, metadata={"Software": None})


def _figures(found: Reproduction) -> Iterator[tuple[str, "Figure"]]:
    if any(row.figure == "10" for row in found.rows):
        yield "fig10", _speeds([row for row in found.rows if row.figure == "10"])
    if any(row.figure == "12" for row in found.rows):
        yield "fig12", _divisions(found)
    if any(row.figure == "13" for row in found.rows):
        yield "fig13", _sweeps(found)
    if any(row.figure == "14" for row in found.rows):
        yield "fig14", _stages(found)
    for figure, title in _CLAIMS.items():
        rows = [row for row in found.rows if row.figure == figure]
        if rows:
            yield f"fig{figure}", _claims(f"Figure {figure}: {title}", rows)
    yield "roofline", _rooflines()
    yield "bandwidth", _bandwidth()


def _panels(columns: int, title: str, rows: int = 1) -> tuple["Figure", list["Axes"]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * columns, 3.6 * rows + 0.5), layout="constrained")
    figure.suptitle(title, fontsize=11, weight="bold", x=0.01, ha="left")
    axes = [figure.add_subplot(rows, columns, at + 1) for at in range(rows * columns)]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", color="#dddddd", linewidth=0.5)
        one.set_axisbelow(True)
    return figure, axes


def _speeds(rows: Sequence[Row]) -> "Figure":
    """Speed over each opponent by model and length; the paper's band is shaded."""
    figure, panels = _panels(2, "Figure 10: speed of the split over its opponents", rows=2)
    by_claim = {(row.claim, row.calibration): row for row in rows}
    places = [(model, length) for model in MODELS for length in LENGTHS]
    for axes, name in zip(panels, speed.BANDS, strict=True):
        _, band = speed.BANDS[name]
        axes.axhspan(band.low, band.high, color=_BAND, label="counts as reproduced")
        for calibration in CALIBRATIONS:
            values = [
                by_claim[f"{model} {short(length)} over {name}", calibration].ours
                for model, length in places
            ]
            axes.plot(
                range(len(values)),
                values,
                "o",
                color=_OF_CALIBRATION[calibration],
                markersize=5,
                label=calibration,
            )
        axes.axhline(1.0, color="#888888", linewidth=0.8)
        axes.set_xticks(
            range(len(places)),
            [f"{model.split('-')[0]} {short(length)}" for model, length in places],
            rotation=60,
            fontsize=7.5,
        )
        axes.set_title(f"over {name}", fontsize=10)
    panels[0].legend(fontsize=8, frameon=False)
    return figure


def _divisions(found: Reproduction) -> "Figure":
    """Speed per worker by split; the paper's optima are marked."""
    figure, panels = _panels(2, "Figure 12: speed per worker over Megatron, by A:F split")
    lengths = {division.SHORT: division.EVEN, division.LONG: division.BEST_LONG}
    for axes, (length, best) in zip(panels, lengths.items(), strict=True):
        for calibration in CALIBRATIONS:
            speeds = division.speeds(calibration, length, found.found)
            axes.plot(
                [str(split) for split in speeds],
                list(speeds.values()),
                "o-",
                color=_OF_CALIBRATION[calibration],
                label=calibration,
            )
        axes.axvline(
            division.SPLITS.index(best), color="#888888", linestyle=":", label="the paper's best"
        )
        axes.set_title(f"{division.MODEL} {short(length)}", fontsize=10)
        axes.set_ylim(bottom=0)
    panels[0].legend(fontsize=8, frameon=False, loc="lower left")
    return figure


def _sweeps(found: Reproduction) -> "Figure":
    """Speed over Megatron by top-k, for each size of expert parallelism."""
    title = "Figure 13: speed over Megatron by top-k of 64 experts (shaded: the paper's range)"
    figure, panels = _panels(len(sweep.SIDES), title)
    for axes, side in zip(panels, sweep.SIDES, strict=True):
        axes.axhspan(sweep.BAND.low, sweep.BAND.high, color=_BAND)
        for calibration in CALIBRATIONS:
            values = [sweep.speed(calibration, k, side, found.found) for k in sweep.TOP_K]
            axes.plot(
                range(len(values)),
                values,
                "o-",
                color=_OF_CALIBRATION[calibration],
                label=calibration,
            )
        axes.set_xticks(range(len(sweep.TOP_K)), [f"top-{k}" for k in sweep.TOP_K])
        axes.set_ylim(bottom=0)
        axes.set_title(f"expert parallelism {side}", fontsize=10)
    panels[0].legend(fontsize=8, frameon=False, loc="lower right")
    return figure


def _stages(found: Reproduction) -> "Figure":
    """Speed and memory by virtual stages."""
    figure, panels = _panels(2, "Figure 14: virtual stages, Qwen3-235B 4K")
    ticks = range(len(stages.STAGES))
    for calibration in CALIBRATIONS:
        speeds = stages.speeds(calibration, found.found)
        outcomes = [found.found[stages.case(calibration, one)] for one in stages.STAGES]
        colour = _OF_CALIBRATION[calibration]
        panels[0].plot(ticks, list(speeds.values()), "o-", color=colour, label=calibration)
        panels[1].plot(ticks, [one.fullest for one in outcomes], "o-", color=colour)
        panels[1].plot(ticks, [one.states for one in outcomes], "o--", color=colour)
    panels[0].set_title("layers per second, over those of one stage", fontsize=10)
    panels[1].set_title("need over memory; dashed: without activations", fontsize=10)
    panels[1].axhline(1.0, color="#888888", linewidth=0.8)
    panels[1].set_yscale("log")
    for axes in panels:
        axes.set_xticks(ticks, [str(one) for one in stages.STAGES])
        axes.axvline(
            stages.STAGES.index(stages.MOST),
            color="#888888",
            linestyle=":",
            label="the paper's most",
        )
    panels[0].legend(fontsize=8, frameon=False, loc="lower right")
    return figure


def _claims(title: str, rows: Sequence[Row]) -> "Figure":
    """Ours under each calibration, and what counts as reproduced, claim by claim."""
    claims = list(dict.fromkeys(row.claim for row in rows))
    figure, (axes,) = _panels(1, title)
    figure.set_size_inches(9.0, 1.2 + 0.34 * len(claims))
    for row in rows:
        at, colour = len(claims) - 1 - claims.index(row.claim), _OF_CALIBRATION[row.calibration]
        width = row.band.high - row.band.low
        axes.barh(at, width, left=row.band.low, height=0.7, color=_BAND, zorder=0)
        face = "white" if row.fitted else colour
        axes.plot([row.ours], [at], "o", color=colour, markerfacecolor=face, markersize=6)
    for calibration in CALIBRATIONS:
        axes.plot([], [], "o", color=_OF_CALIBRATION[calibration], label=calibration)
    axes.set_yticks(range(len(claims)), claims[::-1], fontsize=8)
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
    axes.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3)
    return figure


def _rooflines() -> "Figure":
    """Both sides before and after the split, each model at 16K."""
    title = f"Rooflines of both sides before (hollow) and after (filled) the split, {_HEADLINE}"
    figure, panels = _panels(3, title)
    for axes, model in zip(panels, MODELS, strict=True):
        split, found = points(setting(model, 16384, _HEADLINE))
        for point in found:
            _roof(axes, point)
        axes.set_title(f"{model} 16K, {split}", fontsize=10)
        axes.set_xlabel("FLOPs per byte", fontsize=9)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_yticks(_TFLOPS, [str(one) for one in _TFLOPS])
        axes.minorticks_off()
    panels[0].set_ylabel("TFLOP/s of a worker", fontsize=9)
    panels[0].legend(fontsize=8, frameon=False, loc="lower right")
    return figure


def _roof(axes: "Axes", point: Point) -> None:
    after = point.when == "after"
    colour = _COLOURS[point.side]
    kink = point.compute / point.network
    line = [500.0, kink, max(50_000.0, 2 * kink)]
    axes.plot(
        line,
        [min(point.compute, at * point.network) / TERA for at in line],
        "-" if after else "--",
        color=colour,
        linewidth=1.2,
    )
    axes.plot(
        [point.intensity],
        [point.attained / TERA],
        "o",
        color=colour,
        markerfacecolor=colour if after else "white",
        markersize=7 if after else 13,
        label=f"{point.side} {point.when}",
    )


def _bandwidth() -> "Figure":
    """Speed over Megatron against the speed of network cards, in closed form."""
    title = f"Speed over Megatron without fill and drain, by speed of network cards, {_HEADLINE}"
    figure, panels = _panels(3, title)
    for axes, model in zip(panels, MODELS, strict=True):
        found = sensitivity(setting(model, 4096, _HEADLINE))
        for system, colour in _OF_SYSTEM.items():
            values = [one.by_system[system] for one in found]
            axes.plot([400 * one for one in SPEEDS], values, "o-", color=colour, label=system)
        axes.axhline(1.0, color="#888888", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks([100, 200, 400, 800, 1600], ["100", "200", "400", "800", "1600"])
        axes.set_title(f"{model} 4K", fontsize=10)
        axes.set_xlabel("Gbit/s per card", fontsize=9)
    panels[0].legend(fontsize=8, frameon=False)
    return figure
