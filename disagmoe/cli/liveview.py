"""The live view of a run on a terminal: what to show as a function of what has happened."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from disagmoe.api import EvalResult, RunConfig, RunRestarting, StepResult
from disagmoe.schedule.accounting import Shares
from disagmoe.units import format_bytes, format_count, format_seconds

_KEPT = 400
"""Steps that the sparkline of the loss is made of."""
_LATELY = 20
"""Steps that rates are the median of."""
_WARNINGS = 3
_LOAD_LIMIT = 4.0
"""Busiest expert over the mean, as in the alert of the same name."""
_SILENT_STEPS, _SILENT_S = 5.0, 15.0
"""A step that takes so many times the usual, and so long, is worth a warning."""
_BAR, _SPARK = 24, 24


@dataclass(frozen=True, slots=True)
class Marks:
    """Characters of bars and sparklines."""

    work: str
    network: str
    rest: str
    levels: str


UNICODE = Marks("\u2588", "\u2592", "\u2591", "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588")
ASCII = Marks("#", "=", ".", "_.-=+*#")


@dataclass(slots=True)
class LiveState:
    """What has happened so far, as far as it is shown."""

    config: RunConfig
    began_s: float
    """By the clock of whoever draws, in seconds."""
    steps: tuple[StepResult, ...] = ()
    """The last ones. Replaced, never changed, as another thread draws them."""
    eval_loss: float | None = None
    heard_s: float | None = None
    """When the last step or evaluation came; None before the first."""
    warnings: tuple[str, ...] = ()
    restarting_since_s: float | None = None
    """Since when workers are being started again; None while they work."""

    def step(self, step: StepResult, now_s: float) -> None:
        """Take in a step."""
        self.steps = (*self.steps, step)[-_KEPT:]
        self.heard_s = now_s
        self.restarting_since_s = None
        if step.skipped:
            self._warn(f"step {step.step + 1}: no update, because {step.skipped}")
        worst = max(step.expert_load)
        if worst > _LOAD_LIMIT:
            layer = self.config.model.dense_layers + step.expert_load.index(worst)
            self._warn(
                f"step {step.step + 1}: busiest expert of layer {layer} has {worst:.1f} x the mean"
            )

    def _warn(self, text: str) -> None:
        self.warnings = (*self.warnings, text)[-_WARNINGS:]

    def restarting(self, restarting: RunRestarting, now_s: float) -> None:
        """Forget what will be done again, and say so."""
        self.steps = tuple(step for step in self.steps if step.step < restarting.step)
        self.restarting_since_s = now_s
        self._warn(f"back to step {restarting.step}: {restarting.message.partition(chr(10))[0]}")

    def evaluation(self, evaluation: EvalResult, now_s: float) -> None:
        """Take in an evaluation."""
        self.eval_loss = evaluation.loss
        self.heard_s = now_s


def view(state: LiveState, now_s: float, marks: Marks, width: int) -> list[Text]:
    """Return the lines to show, none longer than `width`."""
    lines = [_title(state), *_body(state, now_s, marks), *_warnings(state, now_s)]
    for line in lines:
        line.truncate(width, overflow="ellipsis" if marks is UNICODE else "crop")
    return lines


def _title(state: LiveState) -> Text:
    config = state.config
    parallel = config.parallel
    return Text.assemble(
        (config.name, "bold"),
        f"  {parallel.summary}, {parallel.schedule}, {config.cluster.device} "
        f"{config.train.precision}",
    )


def _body(state: LiveState, now_s: float, marks: Marks) -> Iterator[Text]:
    if not state.steps:
        if state.restarting_since_s is not None:
            return  # the warnings say it
        yield Text(f"starting workers, {format_seconds(now_s - state.began_s)}")
        return
    last, lately = state.steps[-1], state.steps[-_LATELY:]
    step_s = statistics.median(step.step_s for step in lately)
    done, all_steps = last.step + 1, state.config.train.steps
    full = round(_BAR * done / all_steps)
    yield Text.assemble(
        f"step {done}/{all_steps} ",
        (marks.work * full, "cyan"),
        (marks.rest * (_BAR - full), "dim"),
        f" {100 * done / all_steps:3.0f} %  left {format_seconds((all_steps - done) * step_s)}",
    )
    held_out = "" if state.eval_loss is None else f"  held out {state.eval_loss:.4f}"
    yield Text.assemble(
        f"loss {last.loss:.4f} ",
        (sparkline([step.loss for step in state.steps], _SPARK, marks), "cyan"),
        held_out,
    )
    rate = sum(step.tokens for step in lately) / sum(step.step_s for step in lately)
    yield Text(
        f"{format_count(rate)} tokens/s  {format_seconds(step_s)}/step  "
        f"grad norm {last.grad_norm:.3g}  lr {last.lr:.2g}"
    )
    for group, shares in last.shares.items():
        yield _group(group, shares, marks)
    yield Text(
        f"experts: busiest {max(last.expert_load):.2f} x mean, {sum(last.dead_experts)} unused  "
        f"memory of a worker: {format_bytes(max(last.peak_memory_bytes.values()))} at most",
        style="dim",
    )


def _group(group: str, shares: Shares, marks: Marks) -> Text:
    work = round(_BAR * shares.utilisation)
    network = min(round(_BAR * shares.exposed_communication), _BAR - work)
    return Text.assemble(
        f"{group:<4}",
        (marks.work * work, "green"),
        (marks.network * network, "red"),
        (marks.rest * (_BAR - work - network), "dim"),
        f" {100 * shares.utilisation:3.0f} % busy, {100 * shares.exposed_communication:2.0f} % "
        f"network, {100 * shares.bubble:2.0f} % waits",
    )


def _warnings(state: LiveState, now_s: float) -> Iterator[Text]:
    for warning in state.warnings:
        yield Text(f"! {warning}", style="yellow")
    if state.restarting_since_s is not None:
        since = format_seconds(now_s - state.restarting_since_s)
        yield Text(f"! workers are being started again, {since}", style="bold red")
    elif state.steps and state.heard_s is not None:
        usual_s = statistics.median(step.step_s for step in state.steps)
        silent_s = now_s - state.heard_s
        if silent_s > max(_SILENT_S, _SILENT_STEPS * usual_s):
            yield Text(
                f"! no step for {format_seconds(silent_s)}, usual {format_seconds(usual_s)}",
                style="bold red",
            )


def sparkline(values: Sequence[float], width: int, marks: Marks) -> str:
    """Return `values` as at most `width` characters, each the mean of its part; what is not finite
    is left out."""
    finite = [value for value in values if value == value and abs(value) != float("inf")]
    if not finite:
        return ""
    size = -(-len(finite) // width)
    means = [
        statistics.fmean(finite[start : start + size]) for start in range(0, len(finite), size)
    ]
    low, span = min(means), (max(means) - min(means)) or 1.0
    top = len(marks.levels) - 1
    return "".join(marks.levels[round(top * (mean - low) / span)] for mean in means)
