"""A chart as a picture: SVG for documents, PNG for everything else.

matplotlib is imported when a picture is made and not before, as it takes a second.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from disagmoe.errors import ConfigError
from disagmoe.schedule.bars import Bar, Chart, Shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")

# Attention is blue and experts are orange, forward light and backward dark; what is not compute is
# pale or grey, so that colour means work.
COLOURS = {
    Shade.EMBED: "#b7dde8",
    Shade.ATTENTION_FWD: "#8fbbe8",
    Shade.ATTENTION_BWD: "#2f6fb5",
    Shade.EMBED_BWD: "#5f9fb0",
    Shade.EXPERTS_FWD: "#fbc47d",
    Shade.EXPERTS_BWD: "#d9791e",
    Shade.EXPERTS_DGRAD: "#e0883a",
    Shade.EXPERTS_WGRAD: "#a85510",
    Shade.GATEWAY_FWD: "#e6d36a",
    Shade.GATEWAY_BWD: "#a8902a",
    Shade.HEAD: "#8d62b3",
    Shade.OPTIMIZER: "#3f8f5c",
    Shade.DATA: "#a9cfa0",
    Shade.SEND: "#d05a6e",
    Shade.NETWORK: "#f2a9b4",
    Shade.OTHERS: "#f0f0f0",
    Shade.ACTIVATIONS: "#a3b18a",
    Shade.GRADIENTS: "#588157",
}
_WHITE_TEXT = frozenset(
    {
        Shade.ATTENTION_BWD,
        Shade.EXPERTS_BWD,
        Shade.EXPERTS_DGRAD,
        Shade.EXPERTS_WGRAD,
        Shade.GATEWAY_BWD,
        Shade.HEAD,
        Shade.GRADIENTS,
    }
)
_WIDTH_IN = 15.0
_LEFT_IN, _RIGHT_IN = 1.15, 0.2
_ABOVE_IN, _BELOW_IN = 0.95, 1.15
_WORKER_IN, _CHANNEL_IN = 0.4, 0.24
_BETWEEN_IN = 0.12
"""Between workers and channels."""
_FILLED = 0.86
"""Part of a lane's height that bars take."""
_FONT_PT = 7.0
_DIGIT_PT = 5.0
"""Width of a digit of that size, with some air."""
_MANY = 4000
"""More bars than this are pixels even in an SVG, which would take minutes to open otherwise."""


def check_suffix(path: Path) -> None:
    """Raise ConfigError unless `path` names a kind of picture that can be drawn."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"cannot draw to {path}; name a file that ends in {' or '.join(SUFFIXES)}"
        )


def save(chart: Chart, path: Path, *, start: float = 0.0, end: float | None = None) -> None:
    """Draw `chart` from `start` to `end` (all of it when None) into `path`.

    The same chart gives the same bytes.

    Raises:
        ConfigError: `path` is no picture, or cannot be written.
        ScheduleError: `start` to `end` is no span of time.
    """
    check_suffix(path)
    window = chart.span(start, end)
    from matplotlib import rc_context

    # a salt and no dates: the same ids every time; text stays text
    with rc_context(
        {"svg.hashsalt": "disagmoe", "svg.fonttype": "none", "font.family": "DejaVu Sans"}
    ):
        figure = _figure(chart, *window)
        svg = path.suffix.lower() == ".svg"
        metadata = {"Date": None, "Creator": None} if svg else {"Software": None}
        try:
            figure.savefig(path, dpi=150, metadata=metadata)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _Lane:
    """Where a lane is: inches below the top of the axes."""

    name: str
    top: float
    height: float

    @property
    def middle(self) -> float:
        return self.top + self.height / 2


def _lanes(chart: Chart) -> list[_Lane]:
    lanes: list[_Lane] = []
    top = 0.0
    for names, height in ((chart.workers, _WORKER_IN), (chart.channels, _CHANNEL_IN)):
        for name in names:
            lanes.append(_Lane(name, top, height))
            top += height
        top += _BETWEEN_IN
    return lanes


def _figure(chart: Chart, start: float, end: float) -> "Figure":
    from matplotlib.figure import Figure

    lanes = _lanes(chart)
    depth_in = lanes[-1].top + lanes[-1].height
    height_in = _ABOVE_IN + depth_in + _BELOW_IN
    figure = Figure(figsize=(_WIDTH_IN, height_in))
    axes = figure.add_axes(
        (
            _LEFT_IN / _WIDTH_IN,
            _BELOW_IN / height_in,
            1 - (_LEFT_IN + _RIGHT_IN) / _WIDTH_IN,
            depth_in / height_in,
        )
    )
    axes.set_xlim(start, end)
    axes.set_ylim(depth_in, 0)
    shown = [bar for bar in chart.bars if bar.end > start and bar.start < end]
    for lane in lanes:
        _draw_lane(axes, lane, [bar for bar in shown if bar.lane == lane.name], len(shown))
    _number(axes, lanes, shown, start, end)
    _label(figure, axes, chart, lanes, height_in)
    _legend(figure, {bar.shade for bar in shown}, height_in)
    return figure


def _draw_lane(axes: "Axes", lane: _Lane, bars: Sequence[Bar], shown: int) -> None:
    inset = lane.height * (1 - _FILLED) / 2
    for shade in Shade:
        ranges = [(bar.start, bar.end - bar.start) for bar in bars if bar.shade is shade]
        if not ranges:
            continue
        drawn = axes.broken_barh(
            ranges,
            (lane.top + inset, lane.height * _FILLED),
            facecolor=COLOURS[shade],
            edgecolor="white",
            linewidth=0.0 if shade in (Shade.OTHERS, Shade.NETWORK) else 0.4,
        )
        drawn.set_gid(f"{lane.name}: {shade}")
        drawn.set_rasterized(shown > _MANY)


def _number(
    axes: "Axes", lanes: Iterable[_Lane], shown: Sequence[Bar], start: float, end: float
) -> None:
    """Write micro-batches into the bars that have room for them."""
    points_per_unit = (_WIDTH_IN - _LEFT_IN - _RIGHT_IN) * 72 / (end - start)
    by_name = {lane.name: lane for lane in lanes}
    for bar in shown:
        left, right = max(bar.start, start), min(bar.end, end)
        if bar.mb is None or (right - left) * points_per_unit < _DIGIT_PT * len(str(bar.mb)) + 1:
            continue
        axes.text(
            (left + right) / 2,
            by_name[bar.lane].middle,
            str(bar.mb),
            ha="center",
            va="center_baseline",
            fontsize=_FONT_PT,
            color="white" if bar.shade in _WHITE_TEXT else "#222222",
        )


def _label(
    figure: "Figure", axes: "Axes", chart: Chart, lanes: Sequence[_Lane], height_in: float
) -> None:
    headline, *numbers = chart.title
    left = _LEFT_IN / _WIDTH_IN
    figure.text(left, 1 - 0.28 / height_in, headline, fontsize=11, weight="bold", va="center")
    for line, text in enumerate(numbers):
        figure.text(left, 1 - (0.52 + 0.21 * line) / height_in, text, fontsize=9.5, va="center")
    axes.set_yticks([lane.middle for lane in lanes], [lane.name for lane in lanes])
    axes.tick_params(axis="y", length=0, labelsize=8.5)
    axes.tick_params(axis="x", labelsize=8.5, color="#999999")
    axes.set_xlabel(f"time in {chart.unit}", fontsize=9)
    axes.grid(axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#999999")


def _legend(figure: "Figure", shades: set[Shade], height_in: float) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=COLOURS[shade], label=str(shade)) for shade in Shade if shade in shades
    ]
    figure.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.08 / height_in),
        ncols=-(-len(handles) // 2),
        frameon=False,
        fontsize=8.5,
        handlelength=1.2,
        handleheight=0.9,
        columnspacing=1.6,
    )
