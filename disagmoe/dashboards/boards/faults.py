"""What goes wrong, and how much would be lost."""

from disagmoe.dashboards.panel import Dashboard, Panel, Query, Row, Step, Unit, View
from disagmoe.dashboards.promql import RUN, age_s, of
from disagmoe.metrics import catalogue

_STEPS_OF_WORKERS = of(catalogue.WORKER_STEPS)

FAULTS = Dashboard(
    uid="disagmoe-faults",
    title="DisagMoE / Faults and checkpoints",
    doc="Workers that are down or stuck, restarts, and what a restart would lose.",
    rows=(
        Row(
            "Workers",
            (
                Panel(
                    title="Up",
                    doc="Whether the process answers scrapes, and whether the run is on its way or "
                    "its workers are being started again. A run that has ended has no targets.",
                    queries=(
                        Query(f"up{{job='disagmoe',{RUN}}}", "{{run}} {{instance}}"),
                        Query(f"1 - {of(catalogue.RESTARTING)}", "{{run}} as a whole"),
                    ),
                    view=View.STATES,
                    width=24,
                    low=0,
                    high=1,
                    steps=(Step(None, "red"), Step(1, "green")),
                ),
                Panel(
                    title="Since the last instruction",
                    doc="A worker that begins none for long is stuck, or waits for one that is.",
                    queries=(Query(age_s(catalogue.LAST_PROGRESS), "{{run}} {{instance}}"),),
                    unit=Unit.SECONDS,
                    width=12,
                    low=0,
                ),
                Panel(
                    title="Since the last step",
                    doc="Of the whole run.",
                    queries=(Query(age_s(catalogue.LAST_STEP), "{{run}}"),),
                    unit=Unit.SECONDS,
                    width=6,
                    low=0,
                ),
                Panel(
                    title="Steps between the first and the last worker",
                    doc="More than 1 for long: reports of a worker do not come through.",
                    queries=(
                        Query(
                            f"max by (run) ({_STEPS_OF_WORKERS}) - "
                            f"min by (run) ({_STEPS_OF_WORKERS})",
                            "{{run}}",
                        ),
                    ),
                    width=6,
                    low=0,
                ),
            ),
        ),
        Row(
            "Restarts",
            (
                Panel(
                    title="Restarts by cause",
                    doc="Times that the workers were started again since the run began.",
                    queries=(Query(of(catalogue.RESTARTS), "{{run}} {{cause}}"),),
                    width=12,
                    low=0,
                ),
                Panel(
                    title="Restarts in the last hour",
                    doc="It does not get better by itself: as long as recovery.max_failures is not "
                    "set, the fourth failure within an hour ends the run.",
                    queries=(
                        Query(f"sum by (run) (increase({of(catalogue.RESTARTS)}[1h]))", "{{run}}"),
                    ),
                    view=View.STAT,
                    width=4,
                    steps=(Step(None, "green"), Step(1, "orange"), Step(2.5, "red")),
                ),
                Panel(
                    title="Steps lost",
                    doc="Done after the checkpoint that a restart went back to, and so in vain.",
                    queries=(Query(of(catalogue.LOST_STEPS), "{{run}}"),),
                    view=View.STAT,
                    width=4,
                ),
                Panel(
                    title="Time spent restarting",
                    doc="From failures until the next step began, of all restarts.",
                    queries=(Query(of(catalogue.RESTART_SECONDS), "{{run}}"),),
                    view=View.STAT,
                    unit=Unit.SECONDS,
                    width=4,
                ),
            ),
        ),
        Row(
            "Checkpoints",
            (
                Panel(
                    title="Work that would be lost",
                    doc="Time since the last durable checkpoint, or since the run began.",
                    queries=(Query(age_s(catalogue.LAST_CHECKPOINT), "{{run}}"),),
                    unit=Unit.SECONDS,
                    width=12,
                    low=0,
                ),
                Panel(
                    title="Checkpoints",
                    doc="That are durable.",
                    queries=(Query(of(catalogue.CHECKPOINTS), "{{run}}"),),
                    view=View.STAT,
                    width=6,
                ),
                Panel(
                    title="Time to make one durable",
                    doc="Mean of all so far, 0 before the first. Training goes on meanwhile.",
                    queries=(
                        Query(
                            f"{of(catalogue.CHECKPOINT_SECONDS)} / on (run) "
                            f"clamp_min({of(catalogue.CHECKPOINTS)}, 1)",
                            "{{run}}",
                        ),
                    ),
                    view=View.STAT,
                    unit=Unit.SECONDS,
                    width=6,
                ),
            ),
        ),
    ),
)
