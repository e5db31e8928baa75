"""Dashboards and rules as data: every metric is shown, and only what there is."""

from disagmoe.dashboards.catalogue import DASHBOARDS, expressions, metrics_in, unknown, unused
from disagmoe.dashboards.panel import COLUMNS, Panel, Place, Query, Row, places
from disagmoe.dashboards.rules import ALERTS, RECORDS


def test_every_metric_is_shown_and_no_other() -> None:
    assert unused() == []
    assert unknown() == []


def test_metrics_in_expressions_are_found() -> None:
    texts = ["rate(disagmoe_a_total[5m]) / disagmoe_b", "stage:disagmoe_c:ratio_rate5m", "up"]
    assert metrics_in(texts) == {"disagmoe_a_total", "disagmoe_b"}


def test_panels_choose_runs_and_rules_do_not() -> None:
    for board in DASHBOARDS:
        for panel in board.panels:
            for query in panel.queries:
                assert 'run=~"$run"' in query.expr, panel.title
                assert query.expr.count("(") == query.expr.count(")")
    rules = [*(rule.expr for rule in RECORDS), *(alert.expr for alert in ALERTS)]
    assert [expr for expr in rules if "$" in expr] == []
    assert set(rules) <= set(expressions())


def test_titles_are_unique_within_a_row_and_say_something() -> None:
    for board in DASHBOARDS:
        for row in board.rows:
            titles = [panel.title for panel in row.panels]
            assert len(set(titles)) == len(titles)
        assert all(panel.doc.endswith(".") for panel in board.panels)
    assert len({board.uid for board in DASHBOARDS}) == len(DASHBOARDS)


def test_panels_do_not_overlap_and_stay_on_the_grid() -> None:
    for board in DASHBOARDS:
        top = 0
        taken: set[tuple[int, int]] = set()
        for row in board.rows:
            found, top = places(row, top)
            for place in found:
                assert place.x + place.width <= COLUMNS
                cells = {
                    (x, y)
                    for x in range(place.x, place.x + place.width)
                    for y in range(place.y, place.y + place.height)
                }
                assert not cells & taken
                taken |= cells


def test_a_full_row_wraps() -> None:
    def panel(width: int, height: int) -> Panel:
        return Panel(title="t", doc="d", queries=(Query("up", ""),), width=width, height=height)

    row = Row("r", (panel(12, 4), panel(12, 8), panel(8, 5)))
    assert places(row, 10) == (
        [Place(0, 11, 12, 4), Place(12, 11, 12, 8), Place(0, 19, 8, 5)],
        24,
    )
