"""What a person sees of a run: a live view on a terminal, plain lines elsewhere; on stderr."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live

from disagmoe.api import (
    Callback,
    CheckpointSaved,
    EvalResult,
    Result,
    RunConfig,
    RunPlaced,
    RunRestarting,
    RunResumed,
    RunStarted,
    ScheduleTuned,
    StepResult,
)
from disagmoe.checkpoint.catalogue import names
from disagmoe.cli.liveview import ASCII, UNICODE, LiveState, view
from disagmoe.units import format_bytes, format_count, format_seconds

_PLAIN_LINES = 50
"""About as many lines a run writes where there is no terminal."""


def stderr_console() -> Console:
    """The console of a person; stdout stays for results."""
    return Console(stderr=True)


class ShowProgress(Callback):
    """Shows each step as it comes."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._now = now
        self._state: LiveState | None = None
        self._live = Live(
            console=console, get_renderable=self._view, refresh_per_second=4, transient=True
        )
        self._every = 1
        self._last = 0
        self._shared = False

    def _view(self) -> Group:
        """For the thread of the live view: what there is to show just now."""
        if self._state is None:
            return Group()
        options = self._console.options
        marks = ASCII if options.ascii_only else UNICODE
        return Group(*view(self._state, self._now(), marks, self._console.width))

    def on_begin(self, config: RunConfig, run_dir: Path) -> None:
        """Say what is about to run."""
        self._say(
            f"run {config.name}: {config.parallel.summary} on {_ground(config)}, "
            f"{config.cluster.device}, {config.train.precision}; {run_dir}"
        )
        self._last = config.train.steps - 1
        self._shared = config.cluster.mode == "local"
        self._every = max(1, config.train.steps // _PLAIN_LINES)
        if self._console.is_terminal:
            self._state = LiveState(config, self._now())
            self._live.start()

    def on_notice(self, text: str) -> None:
        """Say it."""
        self._say(text)

    def on_place(self, placed: RunPlaced) -> None:
        """Say who is where."""
        for line in place_lines(placed, shared=self._shared):
            self._say(line)

    def on_start(self, started: RunStarted) -> None:
        """Say who works."""
        pids = ", ".join(f"{item.worker} {item.pid}" for item in started.workers)
        self._say(f"workers started (process ids): {pids}")

    def on_resumed(self, resumed: RunResumed) -> None:
        """Say where the run goes on."""
        programs = "the same" if resumed.same_programs else "other"
        self._say(
            f"loaded {resumed.place} in {format_seconds(resumed.elapsed_s)}; goes on after step "
            f"{resumed.step} with {programs} programs"
        )

    def on_checkpoint(self, saved: CheckpointSaved) -> None:
        """Say what is complete, and what has gone."""
        deleted = f"; deleted {names(saved.deleted)}" if saved.deleted else ""
        self._say(
            f"step {saved.step}: saved {format_bytes(saved.size_bytes)} in "
            f"{format_seconds(saved.elapsed_s)}; {saved.place}{deleted}"
        )
        if saved.problem:
            self._say(f"warning: {saved.problem}")

    def on_restart(self, restarting: RunRestarting) -> None:
        """Say what happened and what follows."""
        if self._state is not None:
            self._state.restarting(restarting, self._now())
        self._say(restart_line(restarting))

    def on_step(self, step: StepResult) -> None:
        """Show the step."""
        if self._state is not None:
            self._state.step(step, self._now())
        elif step.step % self._every == 0 or step.step == self._last or step.stopped:
            self._say(f"step {step.step + 1}/{self._last + 1}  {step_line(step)}")
        if step.skipped:
            self._say(f"step {step.step + 1}: update skipped, because {step.skipped}")

    def on_tuned(self, tuned: ScheduleTuned) -> None:
        """Say what was measured and what follows from it."""
        self._say(tuned_line(tuned))

    def on_eval(self, evaluation: EvalResult) -> None:
        """Show the evaluation."""
        if self._state is not None:
            self._state.evaluation(evaluation, self._now())
        self._say(
            f"step {evaluation.step + 1}: held-out loss {evaluation.loss:.4f} over "
            f"{format_count(evaluation.valid_targets)} tokens, "
            f"{format_seconds(evaluation.elapsed_s)}"
        )

    def on_end(self, result: Result) -> None:
        """Show the summary."""
        if self._live.is_started:
            self._live.stop()
        for line in summary(result):
            self._say(line)

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def place_lines(placed: RunPlaced, *, shared: bool) -> Iterator[str]:
    """One line per node: its workers, the GPU of each, and its network devices."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for seat in placed.seats:
        gpu = "" if seat.gpu is None else f" GPU {seat.gpu} ({seat.device})"
        nics = f" {'+'.join(seat.nics)}" if seat.nics else ""
        nodes.setdefault((seat.host, seat.node), []).append(f"{seat.worker}{gpu}{nics}")
    for (host, node), workers in nodes.items():
        note = ", which share this machine" if shared else ""
        yield f"placed on {host} (node {node[:8]}): {', '.join(workers)}{note}"


def _ground(config: RunConfig) -> str:
    return "this machine" if config.cluster.mode == "local" else "a cluster"


def step_line(step: StepResult) -> str:
    """One step in one line."""
    return (
        f"loss {step.loss:.4f}  {format_count(step.tokens_per_s)} tokens/s  "
        f"{format_seconds(step.step_s)}/step  computes {shares(step.compute_share)}"
    )


def restart_line(restarting: RunRestarting) -> str:
    """A failure and what follows from it."""
    where = f"from step {restarting.step}" if restarting.step else "from the beginning"
    return (
        f"{restarting.message}\nworkers are started again {where} in "
        f"{format_seconds(restarting.pause_s)}; {restarting.steps_lost} steps are lost"
    )


def tuned_line(tuned: ScheduleTuned) -> str:
    """What a profile has found, in one line."""
    parallel = tuned.config.parallel
    costs = ", ".join(f"{name} {1e3 * s:.2f}" for name, s in tuned.seconds.items())
    found = [
        f"measured, in ms per micro-batch: {costs}",
        f"up to {parallel.in_flight} in flight",
        f"planned {format_seconds(tuned.planned_s)}/step without its end, "
        f"{100 * (tuned.gap - 1):.1f} % above the lower bound",
    ]
    if parallel.attention_shares:
        found.append(f"attention_shares = {parallel.attention_shares}")
    if tuned.expert_shares:
        found.append(f"expert_shares = {tuned.expert_shares} would suit these workers better")
    return "; ".join(found)


def shares(by_group: dict[str, float]) -> str:
    """For example `A0 61 % F0 48 %`."""
    return " ".join(f"{group} {100 * share:.0f} %" for group, share in by_group.items())


def summary(result: Result) -> Iterator[str]:
    """What to say when all is over."""
    before = f" ({result.first_step} of them before)" if result.first_step else ""
    yield f"{result.status}: {result.steps} steps{before} in {format_seconds(result.elapsed_s)}"
    if result.first_loss is not None and result.last_loss is not None:
        held_out = "" if result.eval_loss is None else f", held out {result.eval_loss:.4f}"
        yield f"loss {result.first_loss:.4f} -> {result.last_loss:.4f}{held_out}"
    if result.tokens_per_s is not None and result.step_s is not None:
        yield (
            f"{format_count(result.tokens_per_s)} tokens/s, {format_seconds(result.step_s)} per "
            f"step; computes {shares(result.compute_share)} of the time"
        )
        for group, time in result.shares.items():
            yield (
                f"{group}: utilisation {100 * time.utilisation:.0f} %, exposed communication "
                f"{100 * time.exposed_communication:.0f} %, bubble {100 * time.bubble:.0f} %"
            )
    if result.skipped_steps:
        yield f"{result.skipped_steps} steps made no update"
    workers = ", ".join(f"{w} {format_bytes(n)}" for w, n in result.peak_memory_bytes.items())
    total = f"{format_bytes(result.peak_memory_total_bytes)} in all processes together"
    yield f"peak memory: {f'{workers}; ' if workers else ''}{total}"
    yield f"result: {result.path}/result.json, metrics: {result.path}/metrics.jsonl"
    if result.checkpoint is not None:
        yield f"last complete checkpoint: {result.checkpoint}"
    if result.status == "stopped" and result.first_error is not None:
        yield f"while stopping: {result.first_error}"
    if result.status != "ok" and result.checkpoint is not None:
        yield f"to go on: disagmoe train --resume {result.path}"
    if result.status == "failed":
        yield f"logs: {result.path}/logs"
