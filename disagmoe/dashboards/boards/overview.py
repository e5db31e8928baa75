"""How training goes, on one page."""

from disagmoe.dashboards.panel import Dashboard, Panel, Query, Row, Step, Unit, View
from disagmoe.dashboards.promql import BUBBLE, WINDOW, mean_step_s, mfu, of, rate, share
from disagmoe.metrics import catalogue
from disagmoe.schedule.accounting import BUSY, EXPOSED

_STAGE = "run, stage"
_REMAINING = f"({of(catalogue.TARGET_STEPS)} - {of(catalogue.PROGRESS)})"

OVERVIEW = Dashboard(
    uid="disagmoe-overview",
    title="DisagMoE / Overview",
    doc="Loss, speed, and what becomes of each stage's time.",
    rows=(
        Row(
            "Now",
            (
                Panel(
                    title="Progress",
                    doc="Steps that the model has behind it, over those asked for.",
                    queries=(
                        Query(
                            f"{of(catalogue.PROGRESS)} / {of(catalogue.TARGET_STEPS)}", "{{run}}"
                        ),
                    ),
                    view=View.STAT,
                    unit=Unit.RATIO,
                    width=4,
                    height=4,
                    low=0,
                    high=1,
                ),
                Panel(
                    title="Time left",
                    doc="Steps that are left, at the pace of the window.",
                    queries=(Query(f"{_REMAINING} * on (run) ({mean_step_s()})", "{{run}}"),),
                    view=View.STAT,
                    unit=Unit.SECONDS,
                    width=4,
                    height=4,
                ),
                Panel(
                    title="Loss",
                    doc="Cross-entropy of the last step.",
                    queries=(Query(of(catalogue.LOSS), "{{run}}"),),
                    view=View.STAT,
                    width=4,
                    height=4,
                ),
                Panel(
                    title="Tokens/s",
                    doc="Mean of the window, pauses included.",
                    queries=(Query(rate(catalogue.TOKENS, "run"), "{{run}}"),),
                    view=View.STAT,
                    width=4,
                    height=4,
                ),
                Panel(
                    title="MFU",
                    doc="Model FLOPs of the experts that tokens visit and of all else, over the "
                    "peak of both sides; cores and unknown GPUs need metrics.attention_peak_flops "
                    "and expert_peak_flops.",
                    queries=(Query(mfu(), "{{run}}"),),
                    view=View.STAT,
                    unit=Unit.RATIO,
                    width=4,
                    height=4,
                ),
                Panel(
                    title="Versions",
                    doc="What runs.",
                    queries=(Query(of(catalogue.BUILD_INFO), "{{version}}, torch {{torch}}"),),
                    view=View.TABLE,
                    width=4,
                    height=4,
                ),
            ),
        ),
        Row(
            "Learning",
            (
                Panel(
                    title="Loss",
                    doc="Cross-entropy in nats per valid target; held out where it is evaluated.",
                    queries=(
                        Query(of(catalogue.LOSS), "{{run}} training"),
                        Query(of(catalogue.EVAL_LOSS), "{{run}} held out"),
                    ),
                    width=12,
                ),
                Panel(
                    title="Gradient norm",
                    doc="Global, before clipping.",
                    queries=(Query(of(catalogue.GRAD_NORM), "{{run}}"),),
                    width=6,
                ),
                Panel(
                    title="Learning rate",
                    doc="Of the last step.",
                    queries=(Query(of(catalogue.LEARNING_RATE), "{{run}}"),),
                    width=6,
                    low=0,
                ),
            ),
        ),
        Row(
            "Speed",
            (
                Panel(
                    title="Tokens/s",
                    doc="Mean of the window, pauses included.",
                    queries=(Query(rate(catalogue.TOKENS, "run"), "{{run}}"),),
                    low=0,
                ),
                Panel(
                    title="Step time",
                    doc="Mean duration of the steps in the window.",
                    queries=(Query(mean_step_s(), "{{run}}"),),
                    unit=Unit.SECONDS,
                    low=0,
                ),
                Panel(
                    title="MFU",
                    doc="Model FLOPs over the peak of both sides.",
                    queries=(Query(mfu(), "{{run}}"),),
                    unit=Unit.RATIO,
                    low=0,
                ),
            ),
        ),
        Row(
            "Time of each stage",
            (
                Panel(
                    title="Utilisation",
                    doc="Ops of the schedule, optimizer and reading data. The stage with the "
                    "highest share is the one that the others wait for.",
                    queries=(Query(share(BUSY, _STAGE), "{{run}} {{stage}}"),),
                    unit=Unit.RATIO,
                    low=0,
                    high=1,
                ),
                Panel(
                    title="Exposed communication",
                    doc="Nothing to do but to wait for the network: what overlap did not hide. "
                    "High on both sides: the link is the bottleneck.",
                    queries=(Query(share(EXPOSED, _STAGE), "{{run}} {{stage}}"),),
                    unit=Unit.RATIO,
                    low=0,
                    high=1,
                ),
                Panel(
                    title="Bubble",
                    doc="Nothing to do because others are not as far: fill, drain, imbalance of "
                    "the sides, pauses. High on one side: that side has too many workers.",
                    queries=(Query(share(BUBBLE, _STAGE), "{{run}} {{stage}}"),),
                    unit=Unit.RATIO,
                    low=0,
                    high=1,
                    steps=(Step(None, "green"), Step(0.3, "orange")),
                ),
            ),
        ),
        Row(
            "Router",
            (
                Panel(
                    title="Balancing loss",
                    doc="Summed over layers, before its coefficient; as many as there are layers "
                    "is perfect balance.",
                    queries=(Query(of(catalogue.BALANCE_LOSS), "{{run}}"),),
                ),
                Panel(
                    title="z-loss",
                    doc="Summed over layers, before its coefficient; growth means that router "
                    "logits drift.",
                    queries=(Query(of(catalogue.Z_LOSS), "{{run}}"),),
                ),
                Panel(
                    title="Skipped steps",
                    doc="Steps of the window without an update.",
                    queries=(
                        Query(f"increase({of(catalogue.SKIPPED_STEPS)}[{WINDOW}])", "{{run}}"),
                    ),
                    low=0,
                ),
            ),
        ),
    ),
)
