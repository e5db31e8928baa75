"""Dashboards as Grafana reads them; the only file that knows its library.

Panels are those that Grafana 11 and newer draw (no Angular), sources and runs are variables.
"""

import json
from collections.abc import Callable
from typing import Any

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import (
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    ScaleDistributionConfig,
    StackingConfig,
    VizLegendOptions,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from disagmoe.dashboards.panel import Dashboard, Panel, Place, View, places
from disagmoe.metrics import catalogue

_SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${source}")
_WINDOWS = "1m,5m,15m,1h"
_DEFAULT_WINDOW = "5m"
_FILL_PERCENT = {View.LINES: 8, View.STACK: 80}
_AT_MOST_POINTS = 300
"""Of a heatmap or state timeline, whose cells are to be seen."""


def dashboard_json(board: Dashboard) -> str:
    """Return `board` as its JSON file."""
    page = (
        build.Dashboard(board.title)
        .uid(board.uid)
        .description(board.doc)
        .tags(["disagmoe"])
        .editable()
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .with_variable(_source_variable())
        .with_variable(_run_variable())
        .with_variable(_window_variable())
    )
    number, top = 1, 0
    for row in board.rows:
        page.with_row(
            build.Row(row.title).id(number).grid_pos(dashboard.GridPos(h=1, w=24, x=0, y=top))
        )
        found, top = places(row, top)
        for panel, place in zip(row.panels, found, strict=True):
            number += 1
            page.with_panel(_panel(panel, place, number))
        number += 1
    return json.dumps(page.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _source_variable() -> build.DatasourceVariable:
    return build.DatasourceVariable("source").label("Source").type("prometheus")


def _run_variable() -> build.QueryVariable:
    return (
        build.QueryVariable("run")
        .label("Run")
        .datasource(_SOURCE)
        .query(f"label_values({catalogue.TARGET_STEPS.name}, run)")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_DESC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _window_variable() -> build.CustomVariable:
    chosen = dashboard.VariableOption(selected=True, text=_DEFAULT_WINDOW, value=_DEFAULT_WINDOW)
    return (
        build.CustomVariable("window")
        .label("Mean over")
        .description("Longer than two steps: counters of time grow when a step ends.")
        .values(_WINDOWS)
        .current(chosen)
    )


def _panel(panel: Panel, place: Place, number: int) -> Any:
    made = _VIEWS[panel.view](panel)
    made.title(panel.title).description(panel.doc).id(number).datasource(_SOURCE)
    made.grid_pos(dashboard.GridPos(h=place.height, w=place.width, x=place.x, y=place.y))
    made.unit(str(panel.unit))
    if panel.low is not None:
        made.min(panel.low)
    if panel.high is not None:
        made.max(panel.high)
    if panel.steps:
        steps = [dashboard.Threshold(step.value, step.colour) for step in panel.steps]
        absolute = dashboard.ThresholdsMode.ABSOLUTE
        made.thresholds(build.ThresholdsConfig().mode(absolute).steps(steps))
    for place_in_panel, query in enumerate(panel.queries):
        made.with_target(_target(panel, query.expr, query.legend, chr(ord("A") + place_in_panel)))
    return made


def _target(panel: Panel, expr: str, legend: str, ref: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().ref_id(ref).expr(expr).legend_format(legend)
    if panel.view is View.TABLE:
        return target.instant().format(PromQueryFormat.TABLE)
    return target.range().format(PromQueryFormat.TIME_SERIES)


def _lines(panel: Panel) -> timeseries.Panel:
    bottom = (
        VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    made = (
        timeseries.Panel()
        .legend(bottom)
        .show_points(common.VisibilityMode.NEVER)
        .fill_opacity(_FILL_PERCENT[panel.view])
    )
    if panel.view is View.STACK:
        made.stacking(StackingConfig().mode(common.StackingMode.NORMAL))
    if panel.log_scale:
        scale = ScaleDistributionConfig().type(common.ScaleDistribution.LOG)
        made.scale_distribution(scale.log(2))
    return made


def _stat(panel: Panel) -> stat.Panel:
    last = ReduceDataOptions().calcs(["lastNotNull"])
    return stat.Panel().reduce_options(last).graph_mode(common.BigValueGraphMode.NONE)


def _states(panel: Panel) -> statetimeline.Panel:
    by_threshold = build.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS)
    return (
        statetimeline.Panel()
        .color_scheme(by_threshold)
        .show_value(common.VisibilityMode.NEVER)
        .merge_values(True)
        .row_height(0.85)
        .max_data_points(_AT_MOST_POINTS)
    )


def _heatmap(panel: Panel) -> heatmap.Panel:
    colours = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges")
    return (
        heatmap.Panel()
        .calculate(False)
        .color(colours.steps(64))
        .cell_gap(1)
        .max_data_points(_AT_MOST_POINTS)
    )


def _table(panel: Panel) -> table.Panel:
    return table.Panel()


_VIEWS: dict[View, Callable[[Panel], Any]] = {
    View.LINES: _lines,
    View.STACK: _lines,
    View.STAT: _stat,
    View.STATES: _states,
    View.HEATMAP: _heatmap,
    View.TABLE: _table,
}
