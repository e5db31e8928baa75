"""What a run adds up, event by event, and the result that comes of it."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from disagmoe.actors.events import (
    CheckpointSaved,
    EvalResult,
    Event,
    RunEnded,
    RunPlaced,
    RunRestarting,
    RunResumed,
    RunStarted,
    ScheduleTuned,
    StepResult,
    StepTraced,
)
from disagmoe.actors.inquest import describe_failures
from disagmoe.actors.merge import compute_share, group_shares
from disagmoe.actors.messages import FailureKind
from disagmoe.api.hops import hop_figures
from disagmoe.api.result import Result, Status
from disagmoe.checkpoint.manifest import Done
from disagmoe.config.run import RunConfig
from disagmoe.errors import DisagMoEError
from disagmoe.runtime.trace import WorkerTrace


@dataclass(slots=True)
class Tally:
    """Mutable; one per run."""

    steps: list[StepResult] = field(default_factory=list)
    evaluations: list[EvalResult] = field(default_factory=list)
    traces: dict[str, list[WorkerTrace]] = field(default_factory=dict)
    placed: RunPlaced | None = None
    started: RunStarted | None = None
    ended: RunEnded | None = None
    restarts: dict[str, int] = field(default_factory=dict)
    """How often workers were started again, by cause."""
    config: RunConfig | None = None
    """The resolved one, and as it was tuned."""
    before: Done | None = None
    """What had been done when the run went on from a checkpoint."""
    checkpoint: str | None = None
    """The last complete one."""

    def add(self, event: Event) -> None:
        """Take in the next event."""
        match event:
            case RunPlaced():
                self.placed = event
            case RunStarted():
                self.started = event
            case StepResult():
                self.steps.append(event)
            case EvalResult():
                self.evaluations.append(event)
            case ScheduleTuned() | RunResumed():
                pass  # the config file and the first step say it
            case RunRestarting():
                self._go_back(event)
            case CheckpointSaved():
                self.checkpoint = event.place
            case StepTraced():
                self._keep(event.traces)
            case RunEnded():
                self.ended = event

    def _go_back(self, event: RunRestarting) -> None:
        """Forget what will be done again."""
        self.restarts[event.cause] = self.restarts.get(event.cause, 0) + 1
        self.steps = [step for step in self.steps if step.step < event.step]
        self.evaluations = [one for one in self.evaluations if one.step < event.step]
        for worker, traces in self.traces.items():
            self.traces[worker] = [trace for trace in traces if trace.step < event.step]

    def _keep(self, traces: Mapping[str, WorkerTrace]) -> None:
        for worker, trace in traces.items():
            self.traces.setdefault(worker, []).append(trace)

    @property
    def peak_bytes(self) -> int:
        """The largest memory of each worker, summed."""
        return sum(_largest(step.peak_memory_bytes for step in self.steps).values())

    @property
    def unfit(self) -> bool:
        """Whether workers cannot run on their nodes."""
        failures = () if self.ended is None else self.ended.failures
        return any(failure.kind is FailureKind.UNFIT for failure in failures)

    @property
    def failure(self) -> str | None:
        """Why the workers have failed, or None."""
        failures = () if self.ended is None else self.ended.failures
        if not failures:
            return None
        assert self.ended is not None
        return "\n".join(filter(None, (describe_failures(failures), self.ended.note)))

    @property
    def failure_of_stop(self) -> str | None:
        """What has gone wrong by itself in a stopped run, such as its last save; a worker that dies
        is most likely one that got the script's signal as well."""
        failures = () if self.ended is None else self.ended.failures
        return self.failure if failures and failures[0].kind is FailureKind.RAISED else None

    @property
    def _first_loss(self) -> float | None:
        if self.before is not None:
            return self.before.first_loss
        return self.steps[0].loss if self.steps else None

    def result(
        self,
        status: Status,
        *,
        first_error: str | None,
        peak_memory_total_bytes: int,
        elapsed_s: float,
        path: Path,
    ) -> Result:
        """Return the result of a run that has ended with `status`."""
        steps = self.steps
        before = self.before or Done(step=0, updates=0, tokens=0, first_loss=None)
        timed = steps[1:] or steps  # the first one is slower for reasons of its own
        workers = () if self.started is None else self.started.workers
        return Result(
            status=status,
            first_step=before.step,
            steps=before.step + len(steps),
            skipped_steps=before.step - before.updates + sum(bool(step.skipped) for step in steps),
            first_loss=self._first_loss,
            last_loss=steps[-1].loss if steps else before.last_loss,
            eval_loss=self.evaluations[-1].loss if self.evaluations else None,
            tokens=before.tokens + sum(step.tokens for step in steps),
            tokens_per_s=_rate(timed) if timed else None,
            step_s=statistics.median(step.step_s for step in timed) if timed else None,
            compute_share=compute_share([step.seconds for step in timed]),
            shares=group_shares([step.seconds for step in timed]),
            channel_bytes=_median(step.channel_bytes for step in timed),
            channel_messages=_median(step.channel_messages for step in timed),
            hops=hop_figures(timed, self.config),
            mfu=None,
            peak_memory_bytes=_largest(step.peak_memory_bytes for step in steps),
            peak_memory_total_bytes=peak_memory_total_bytes,
            placement={} if self.placed is None else _placement(self.placed),
            versions=(dict(workers[0].versions) if workers else {}) | {"ray": ray.__version__},
            restarts=dict(self.restarts),
            first_error=first_error,
            checkpoint=self.checkpoint,
            elapsed_s=elapsed_s,
            path=str(path),
        )


def outcome(tally: Tally, raised: BaseException | None) -> tuple[Status, str | None]:
    """Return status and first error of a run in which the script has met `raised`, or nothing."""
    if isinstance(raised, KeyboardInterrupt | SystemExit):
        return "stopped", tally.failure_of_stop
    if tally.failure is not None:
        return "failed", tally.failure
    if raised is not None:
        text = str(raised) if isinstance(raised, DisagMoEError) else None
        return "failed", text or f"{type(raised).__name__}: {raised}"
    if tally.ended is None:
        return "failed", "the run has ended without an outcome"
    return tally.ended.status, None


def _placement(placed: RunPlaced) -> dict[str, dict[str, Any]]:
    return {
        seat.worker: {
            "host": seat.host,
            "node": seat.node,
            "pid": seat.pid,
            "gpu": seat.gpu,
            "device": seat.device,
            "nics": list(seat.nics),
        }
        for seat in placed.seats
    }


def _rate(steps: list[StepResult]) -> float:
    return sum(step.tokens for step in steps) / sum(step.step_s for step in steps)


def _median(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The median step of each channel, one that was there; a channel that rests counts as 0."""
    steps = list(counts)
    channels = dict.fromkeys(name for step in steps for name in step)
    return {name: statistics.median_low([step.get(name, 0) for step in steps]) for name in channels}


def _largest(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    largest: dict[str, int] = {}
    for by_worker in counts:
        for worker, count in by_worker.items():
            largest[worker] = max(count, largest.get(worker, 0))
    return largest
