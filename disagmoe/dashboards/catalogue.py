"""All dashboards, and which metrics and expressions they have."""

import re
from collections.abc import Iterable

from disagmoe.dashboards.boards.experts import EXPERTS
from disagmoe.dashboards.boards.faults import FAULTS
from disagmoe.dashboards.boards.overview import OVERVIEW
from disagmoe.dashboards.boards.stages import STAGES
from disagmoe.dashboards.panel import Dashboard
from disagmoe.dashboards.rules import ALERTS, RECORDS
from disagmoe.metrics.catalogue import CATALOGUE, PREFIX

DASHBOARDS: tuple[Dashboard, ...] = (OVERVIEW, STAGES, EXPERTS, FAULTS)
_NAME = re.compile(rf"(?<![:\w]){PREFIX}\w+")


def expressions() -> list[str]:
    """Return every expression of every panel and rule."""
    queries = [q.expr for board in DASHBOARDS for panel in board.panels for q in panel.queries]
    return [*queries, *(rule.expr for rule in RECORDS), *(alert.expr for alert in ALERTS)]


def metrics_in(texts: Iterable[str]) -> set[str]:
    """Return the names of this project's metrics in some expressions."""
    return {name for text in texts for name in _NAME.findall(text)}


def unused() -> list[str]:
    """Return the metrics that no panel and no rule shows."""
    shown = metrics_in(expressions())
    return [metric.name for metric in CATALOGUE if metric.name not in shown]


def unknown() -> list[str]:
    """Return the names in expressions that are no metrics."""
    return sorted(metrics_in(expressions()) - {metric.name for metric in CATALOGUE})
