"""Every metric of a run: the one place from which exporter, docs, dashboards and tests are made.

Labels are bounded by the layout of a run: never a step, micro-batch, expert or process id. All
series carry the labels of who serves them (`IDENTITY`); `run`, `host`, `stage` and `instance` are
attached where targets are discovered.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

PREFIX = "disagmoe_"
IDENTITY = ("role", "group", "rank", "ring")
"""`role` is attention, expert, colocated or driver; the others are numbers as in `r1.A0.2`: ring 1,
group 0, rank 2 (all 0 for the driver)."""
DISCOVERED = ("run", "host", "stage", "instance")
"""`run` is the name of the run directory, `stage` a group such as A0 (or `driver`), `instance` a
worker such as A0.1."""


class Type(StrEnum):
    """As Prometheus has it; the value is its word for it."""

    COUNTER = "counter"
    GAUGE = "gauge"


class Source(StrEnum):
    """Who serves a metric."""

    WORKER = "worker"
    DRIVER = "driver"


class Unit(StrEnum):
    """Of a metric's values, as Prometheus writes units."""

    SECONDS = "seconds"
    """A duration, or a moment since 1970."""
    BYTES = "bytes"
    BYTES_PER_S = "bytes_per_second"
    FLOPS = "flops"
    FLOPS_PER_S = "flops_per_second"
    NATS = "nats"
    STEPS = "steps"
    TOKENS = "tokens"
    MESSAGES = "messages"
    EXPERTS = "experts"
    RESTARTS = "restarts"
    CHECKPOINTS = "checkpoints"
    ONE = "1"
    """A pure number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric."""

    name: str
    """As Prometheus shows it, with prefix and unit; counters end in `_total`."""
    type: Type
    unit: Unit
    source: Source
    doc: str
    """Its definition, one sentence."""
    labels: tuple[str, ...] = ()
    """Beside those of its source."""

    @property
    def family(self) -> str:
        """Its name without what marks a counter."""
        return self.name.removesuffix(_TOTAL)

    @property
    def named_unit(self) -> str:
        """The unit if the name ends with it, as OpenMetrics asks of a unit it is told; or ''."""
        return str(self.unit) if self.family.endswith(f"_{self.unit}") else ""


_TOTAL = "_total"


def _counter(name: str, unit: Unit, source: Source, doc: str, *labels: str) -> Metric:
    return Metric(
        name=f"{PREFIX}{name}{_TOTAL}",
        type=Type.COUNTER,
        unit=unit,
        source=source,
        doc=doc,
        labels=labels,
    )


def _gauge(name: str, unit: Unit, source: Source, doc: str, *labels: str) -> Metric:
    return Metric(
        name=PREFIX + name, type=Type.GAUGE, unit=unit, source=source, doc=doc, labels=labels
    )


# Of each worker. Counters grow at the end of each step.
SECONDS = _counter(
    "seconds",
    Unit.SECONDS,
    Source.WORKER,
    "Time of the worker by what it did; all kinds together are its wall time.",
    "kind",
)
WALL_SECONDS = _counter(
    "wall_seconds",
    Unit.SECONDS,
    Source.WORKER,
    "Time since the worker was connected, up to the end of its last step, by another clock than "
    "that of the kinds.",
)
WORKER_STEPS = _counter(
    "worker_steps", Unit.STEPS, Source.WORKER, "Steps that the worker has done."
)
CHANNEL_BYTES = _counter(
    "channel_bytes",
    Unit.BYTES,
    Source.WORKER,
    "Bytes that the worker has sent on a channel: payloads, counts, sums.",
    "channel",
)
CHANNEL_MESSAGES = _counter(
    "channel_messages",
    Unit.MESSAGES,
    Source.WORKER,
    "Messages that the worker has sent on a channel.",
    "channel",
)
PEAK_MEMORY = _gauge(
    "memory_peak_bytes",
    Unit.BYTES,
    Source.WORKER,
    "Largest resident memory of the worker so far; device memory on CUDA.",
)
LAST_PROGRESS = _gauge(
    "last_progress_timestamp_seconds",
    Unit.SECONDS,
    Source.WORKER,
    "When the worker last began an instruction of its program; told while a step runs.",
)

# Of the run as a whole, served by the driver: the process of the script.
BUILD_INFO = _gauge(
    "build_info",
    Unit.ONE,
    Source.DRIVER,
    "1; its labels say which versions run.",
    "version",
    "python",
    "torch",
)
TARGET_STEPS = _gauge(
    "target_steps", Unit.STEPS, Source.DRIVER, "Steps that the run is asked to do."
)
PROGRESS = _gauge(
    "progress_steps",
    Unit.STEPS,
    Source.DRIVER,
    "Steps that the model has behind it; a restart puts it back.",
)
STEPS = _counter(
    "steps",
    Unit.STEPS,
    Source.DRIVER,
    "Steps done, skipped ones included, and those that a restart does once more.",
)
SKIPPED_STEPS = _counter(
    "skipped_steps",
    Unit.STEPS,
    Source.DRIVER,
    "Steps without an update, as something in them was not finite or had no target.",
)
STEP_SECONDS = _counter(
    "step_seconds", Unit.SECONDS, Source.DRIVER, "Duration of all steps together."
)
LAST_STEP = _gauge(
    "last_step_timestamp_seconds",
    Unit.SECONDS,
    Source.DRIVER,
    "When the last step ended; before the first, when the run began.",
)
TOKENS = _counter("tokens", Unit.TOKENS, Source.DRIVER, "Tokens trained on.")
MODEL_FLOPS = _counter(
    "model_flops",
    Unit.FLOPS,
    Source.DRIVER,
    "Model FLOPs of all steps: three forwards per token with the experts that it visits, causal "
    "attention, LM head; nothing recomputed.",
)
PEAK_FLOPS = _gauge(
    "peak_flops",
    Unit.FLOPS_PER_S,
    Source.DRIVER,
    "Peak FLOP/s of all workers of a side together, in the precision of the run; absent where that "
    "of one is not known.",
    "side",
)
LINK_BYTES = _gauge(
    "link_bytes_per_second",
    Unit.BYTES_PER_S,
    Source.DRIVER,
    "Bytes per second that one worker can send; absent where it is not known.",
)
LOSS = _gauge(
    "loss", Unit.NATS, Source.DRIVER, "Cross-entropy per valid target of the last step, in nats."
)
BALANCE_LOSS = _gauge(
    "balance_loss",
    Unit.ONE,
    Source.DRIVER,
    "Load-balancing loss of the last step, summed over layers, before its coefficient.",
)
Z_LOSS = _gauge(
    "z_loss",
    Unit.ONE,
    Source.DRIVER,
    "Router z-loss of the last step, summed over layers, before its coefficient.",
)
EVAL_LOSS = _gauge(
    "eval_loss",
    Unit.NATS,
    Source.DRIVER,
    "Cross-entropy of the last evaluation; absent before the first.",
)
GRAD_NORM = _gauge(
    "grad_norm", Unit.ONE, Source.DRIVER, "Global gradient norm of the last step, before clipping."
)
LEARNING_RATE = _gauge("learning_rate", Unit.ONE, Source.DRIVER, "Learning rate of the last step.")
EXPERT_LOAD = _gauge(
    "expert_load_max_over_mean",
    Unit.ONE,
    Source.DRIVER,
    "Choices of the last step that fell on the busiest expert of a layer, over the mean of its "
    "experts; summed over all workers and micro-batches before.",
    "layer",
)
EXPERT_VARIATION = _gauge(
    "expert_load_variation",
    Unit.ONE,
    Source.DRIVER,
    "Coefficient of variation of the choices over the experts of a layer in the last step.",
    "layer",
)
DEAD_EXPERTS = _gauge(
    "dead_experts",
    Unit.EXPERTS,
    Source.DRIVER,
    "Experts of a layer without a single choice in the last step.",
    "layer",
)
RESTARTS = _counter(
    "restarts",
    Unit.RESTARTS,
    Source.DRIVER,
    "Times that the workers were started again, by cause.",
    "cause",
)
RESTARTING = _gauge(
    "restarting",
    Unit.ONE,
    Source.DRIVER,
    "1 from when workers have failed until the first step after they were started again, else 0.",
)
RESTART_SECONDS = _counter(
    "restart_seconds",
    Unit.SECONDS,
    Source.DRIVER,
    "Time from when workers had failed until the first step after it began, of all restarts.",
)
LOST_STEPS = _counter(
    "lost_steps",
    Unit.STEPS,
    Source.DRIVER,
    "Steps that were done after the checkpoint that a restart went back to, of all restarts.",
)
CHECKPOINTS = _counter(
    "checkpoints", Unit.CHECKPOINTS, Source.DRIVER, "Checkpoints that are durable."
)
CHECKPOINT_SECONDS = _counter(
    "checkpoint_seconds",
    Unit.SECONDS,
    Source.DRIVER,
    "Time from the decision to save until the checkpoint was durable, of all checkpoints.",
)
LAST_CHECKPOINT = _gauge(
    "last_checkpoint_timestamp_seconds",
    Unit.SECONDS,
    Source.DRIVER,
    "When the last durable checkpoint was decided on; before the first, when the run began. What "
    "was done since then would be lost.",
)

CATALOGUE: tuple[Metric, ...] = (
    SECONDS,
    WALL_SECONDS,
    WORKER_STEPS,
    CHANNEL_BYTES,
    CHANNEL_MESSAGES,
    PEAK_MEMORY,
    LAST_PROGRESS,
    BUILD_INFO,
    TARGET_STEPS,
    PROGRESS,
    STEPS,
    SKIPPED_STEPS,
    STEP_SECONDS,
    LAST_STEP,
    TOKENS,
    MODEL_FLOPS,
    PEAK_FLOPS,
    LINK_BYTES,
    LOSS,
    BALANCE_LOSS,
    Z_LOSS,
    EVAL_LOSS,
    GRAD_NORM,
    LEARNING_RATE,
    EXPERT_LOAD,
    EXPERT_VARIATION,
    DEAD_EXPERTS,
    RESTARTS,
    RESTARTING,
    RESTART_SECONDS,
    LOST_STEPS,
    CHECKPOINTS,
    CHECKPOINT_SECONDS,
    LAST_CHECKPOINT,
)

_INTRODUCTION = """\
<!-- Written by `disagmoe dashboards write` from disagmoe/metrics/catalogue.py. -->

# Metrics of a run

Each process serves its own at `/metrics`, on the ports that `prom_sd.json` in the run directory
lists. The process of the script, which drives the run, is `driver` in labels and serves that list
at `/sd`, too. Series have the labels `role`, `group`, `rank` and `ring` of who serves them, and
`run`, `host`, `stage` and `instance` from the list. The kinds of time and the shares made of them
are defined in `disagmoe/schedule/accounting.py`.
"""


def markdown() -> str:
    """Return docs/metrics.md."""
    return "\n".join([_INTRODUCTION, *_table_lines()]) + "\n"


def _table_lines() -> Iterator[str]:
    for source in Source:
        yield f"## Of {'each worker' if source is Source.WORKER else 'the run, by the driver'}"
        yield ""
        yield "| metric | type | unit | labels | definition |"
        yield "| --- | --- | --- | --- | --- |"
        for metric in CATALOGUE:
            if metric.source is source:
                labels = ", ".join(f"`{label}`" for label in metric.labels)
                what = f"{metric.type} | {metric.unit.replace('_', ' ')} | {labels}"
                yield f"| `{metric.name}` | {what} | {metric.doc} |"
        if source is Source.WORKER:
            yield ""
