"""Dashboards as data; which program draws them is decided elsewhere."""

from dataclasses import dataclass
from enum import StrEnum

COLUMNS = 24
"""Grafana's grid."""


class View(StrEnum):
    """How a panel shows its series."""

    LINES = "lines"
    STACK = "stack"
    """Areas on top of each other: parts of a whole."""
    STAT = "stat"
    """The last value, large."""
    STATES = "states"
    """A row per series, coloured by value."""
    HEATMAP = "heatmap"
    """A row per series, with all rows on one scale of colours."""
    TABLE = "table"
    """Labels of the last values."""


class Unit(StrEnum):
    """Of a panel's values; the value is Grafana's word for it."""

    NONE = "short"
    RATIO = "percentunit"
    SECONDS = "s"
    BYTES = "bytes"
    BYTES_PER_S = "Bps"
    PER_S = "cps"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of a panel; `$run` and `$window` are chosen by who looks at it."""

    expr: str
    legend: str
    """Name of each series, with labels as `{{stage}}`."""


@dataclass(frozen=True, slots=True)
class Step:
    """Values from `value` on have this colour."""

    value: float | None
    """None for those below all others."""
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel."""

    title: str
    doc: str
    """What the numbers are and when to worry; shown beside the title."""
    queries: tuple[Query, ...]
    view: View = View.LINES
    unit: Unit = Unit.NONE
    width: int = 8
    """Columns."""
    height: int = 8
    low: float | None = None
    high: float | None = None
    steps: tuple[Step, ...] = ()
    log_scale: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a headline, left to right, wrapped where they are full."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One page."""

    uid: str
    title: str
    doc: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels in order."""
        return tuple(panel for row in self.rows for panel in row.panels)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a panel is on the grid."""

    x: int
    y: int
    width: int
    height: int


def places(row: Row, top: int) -> tuple[list[Place], int]:
    """Return the places of the panels of `row`, whose headline is at `top`, and the next top."""
    found: list[Place] = []
    x, y, height = 0, top + 1, 0
    for panel in row.panels:
        if x + panel.width > COLUMNS:
            x, y, height = 0, y + height, 0
        found.append(Place(x, y, panel.width, panel.height))
        x, height = x + panel.width, max(height, panel.height)
    return found, y + height
