"""How evenly the router uses the experts."""

from disagmoe.dashboards.panel import Dashboard, Panel, Query, Row, View
from disagmoe.dashboards.promql import of
from disagmoe.metrics import catalogue

EXPERTS = Dashboard(
    uid="disagmoe-experts",
    title="DisagMoE / Experts",
    doc="Load of the experts by layer, summed over all workers and micro-batches of a step.",
    rows=(
        Row(
            "All layers",
            (
                Panel(
                    title="Busiest expert over the mean, by layer",
                    doc="1 is perfect balance; the number of experts over top-k is the worst.",
                    queries=(Query(of(catalogue.EXPERT_LOAD), "{{layer}}"),),
                    view=View.HEATMAP,
                    width=24,
                    height=10,
                ),
                Panel(
                    title="Coefficient of variation, by layer",
                    doc="Of the choices over experts; 0 is perfect balance.",
                    queries=(Query(of(catalogue.EXPERT_VARIATION), "{{layer}}"),),
                    view=View.HEATMAP,
                    width=12,
                    height=10,
                ),
                Panel(
                    title="Dead experts, by layer",
                    doc="Experts without a choice in a step. Some are normal for small batches; "
                    "the same number for long is lost capacity.",
                    queries=(Query(of(catalogue.DEAD_EXPERTS), "{{layer}}"),),
                    view=View.HEATMAP,
                    width=12,
                    height=10,
                ),
            ),
        ),
        Row(
            "Worst and mean",
            (
                Panel(
                    title="Busiest expert over the mean",
                    doc="Expert workers wait for the one that holds it.",
                    queries=(
                        Query(f"max by (run) ({of(catalogue.EXPERT_LOAD)})", "{{run}} worst layer"),
                        Query(f"avg by (run) ({of(catalogue.EXPERT_LOAD)})", "{{run}} mean"),
                    ),
                    width=12,
                ),
                Panel(
                    title="Dead experts",
                    doc="Of all layers together.",
                    queries=(Query(f"sum by (run) ({of(catalogue.DEAD_EXPERTS)})", "{{run}}"),),
                    width=12,
                    low=0,
                ),
            ),
        ),
    ),
)
