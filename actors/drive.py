"""The loop that drives a run: calls queued ahead, replies merged, deadlines kept, one end.

Knows nothing of Ray: the workers are a Crew.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from disagmoe.actors.calls import Deadlines, calls
from disagmoe.actors.crew import Crew, all_of
from disagmoe.actors.events import (
    Event,
    RunEnded,
    RunPlaced,
    RunResumed,
    RunStarted,
    ScheduleTuned,
    StepTraced,
)
from disagmoe.actors.failure import failure_of, unfit
from disagmoe.actors.heartbeats import EVERY_S, Heartbeats
from disagmoe.actors.inquest import Inquest
from disagmoe.actors.keeper import Keeper
from disagmoe.actors.merge import merge_eval, merge_step
from disagmoe.actors.messages import (
    Adopted,
    Call,
    Located,
    Outcome,
    Progress,
    Restored,
    ResumePoint,
    Saved,
    Started,
    WorkerAssignment,
    WorkerFailure,
)
from disagmoe.config.run import RunConfig
from disagmoe.errors import CheckpointError, PlacementError
from disagmoe.runtime.report import EvalReport, StepReport
from disagmoe.runtime.trace import WorkerTrace

Traces = Mapping[str, WorkerTrace]
"""What each worker did in one step."""

Settle = Callable[[Mapping[str, Located]], tuple[RunPlaced, Sequence[WorkerAssignment]]]
"""From what workers find on their nodes to what they are to set up. Raises PlacementError."""

Retune = Callable[[Sequence[Traces]], tuple[ScheduleTuned, Sequence[WorkerAssignment]]]
"""From the traces of the profiled steps to what the workers are to go on with."""

T = TypeVar("T")

QUEUED_CALLS = 3
"""Calls that a worker has at most: one under way and two behind it, so that it never waits for the
driver."""


@dataclass(slots=True)
class _Pending:
    call: Call
    outcomes: dict[str, Outcome] = field(default_factory=dict)


class _CrewFailedError(Exception):
    def __init__(self, failures: tuple[WorkerFailure, ...]) -> None:
        super().__init__()
        self.failures = failures


class Drive:
    """One epoch of a run, from its first step or from where its keeper says."""

    def __init__(
        self,
        config: RunConfig,
        crew: Crew,
        inquest: Inquest,
        settle: Settle,
        retune: Retune,
        keeper: Keeper,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._crew = crew
        self._inquest = inquest
        self._settle = settle
        self._retune = retune
        self._keeper = keeper
        self._now = now
        first_step = keeper.resume.step if keeper.resume else 0
        self._steps = range(first_step, config.train.steps)
        self._profiled = config.parallel.profiled_steps(first_step)
        self._deadlines = Deadlines.of(config, first_step)
        self._pending: deque[_Pending] = deque()
        self._failures: list[WorkerFailure] = []
        """Those that are told once all that was done before them is."""
        self._profile: list[Traces] = []
        self._since_s = now()
        self._heartbeats = Heartbeats(crew, config.cluster.heartbeat_timeout_s, now)

    def events(self) -> Iterator[Event]:
        """Run to the end. The last event is a RunEnded, before which all workers are killed."""
        try:
            stopped = yield from self._run()
            yield from self._finish_saves()
            self._crew.kill()
            yield RunEnded(status="stopped" if stopped else "ok")
        except (_CrewFailedError, CheckpointError) as error:
            self._crew.kill()
            failures = (
                error.failures
                if isinstance(error, _CrewFailedError)
                else (failure_of("driver", error),)
            )
            with suppress(CheckpointError):  # what failed before is what matters
                yield from self._keeper.finish()
            yield RunEnded(status="failed", failures=failures)

    def _run(self) -> Generator[Event, None, bool]:
        """Do all steps; return whether the run was stopped in them."""
        yield self._place()
        started, _ = self._call_alone(Call("setup"), Started)
        self._keeper.started(tuple(started), next(iter(started.values())).versions)
        yield RunStarted(workers=tuple(started.values()))
        if self._keeper.resume is not None:
            yield self._restore(self._keeper.resume)
        train, first, change = self._config.train, self._steps.start, self._profiled.stop
        if not self._profiled:
            return (yield from self._make(calls(train, self._steps)))
        stopped = yield from self._make(calls(train, range(first, change)))
        if not stopped:
            yield self._change_programs(change - 1)
            stopped = yield from self._make(calls(train, range(change, train.steps)))
        return stopped

    def _restore(self, point: ResumePoint) -> Event:
        _, elapsed_s = self._call_alone(Call("restore", point.step), Restored)
        return RunResumed(
            step=point.step,
            place=point.place,
            elapsed_s=elapsed_s,
            same_programs=self._keeper.runs_same_programs,
        )

    def _place(self) -> Event:
        """See where the workers are, and tell them what follows from it."""
        located, _ = self._call_alone(Call("locate"), Located)
        self._heartbeats.begin()
        try:
            placed, assignments = self._settle(located)
        except PlacementError as error:
            raise _CrewFailedError((unfit(error),)) from error
        self._crew.assign(assignments)
        self._since_s = self._now()
        return placed

    def _make(self, todo: Iterator[Call]) -> Generator[Event, None, bool]:
        """Make all calls and wait for the last; return whether the run was stopped in them."""
        while True:
            while len(self._pending) < QUEUED_CALLS and (call := next(todo, None)) is not None:
                self._queue(call)
            if not self._pending:
                return False
            call = self._pending[0].call
            outcomes, elapsed_s = self._finish_oldest()
            yield from self._keeper.complete()
            if call.kind == "eval":
                yield merge_eval(call.step, all_of(EvalReport, outcomes), elapsed_s)
                continue
            reports = all_of(StepReport, outcomes)
            result = merge_step(reports, elapsed_s)
            saved = self._keeper.step_done(result)
            if saved is not None:
                self._crew.start(saved)
            yield result
            yield from self._traced(call.step, reports)
            if result.stopped:
                return True

    def _finish_saves(self) -> Iterator[Event]:
        """Wait until all checkpoints are complete."""
        while self._keeper.awaited() is not None:
            self._receive(self._saves_left_s())
            yield from self._keeper.complete()
        yield from self._keeper.finish()

    def _traced(self, step: int, reports: Mapping[str, StepReport]) -> Iterator[Event]:
        traces = {name: r.trace for name, r in reports.items() if r.trace is not None}
        if step in self._profiled:
            self._profile.append(traces)
        if traces and self._config.trace.covers(step):
            yield StepTraced(traces=traces)

    def _change_programs(self, step: int) -> Event:
        """Go on with tuned programs after `step`. No other call is under way, so that no step is
        done by workers with different programs."""
        tuned, assignments = self._retune(self._profile)
        self._profile.clear()
        self._crew.assign(assignments)
        self._since_s = self._now()  # the time until here was the driver's
        self._heartbeats.begin()
        self._call_alone(Call("adopt", step), Adopted)
        self._keeper.goes_on_with(tuned.config, tuned.programs_sha256)
        return tuned

    def _call_alone(self, call: Call, answer: type[T]) -> tuple[Mapping[str, T], float]:
        """Make a call while no other is under way; return all answers and its duration."""
        self._queue(call)
        outcomes, elapsed_s = self._finish_oldest()
        return all_of(answer, outcomes), elapsed_s

    def _queue(self, call: Call) -> None:
        self._pending.append(_Pending(call))
        self._crew.start(call)

    def _finish_oldest(self) -> tuple[Mapping[str, Outcome], float]:
        """Wait until all workers have answered the oldest call; return answers and duration."""
        call, outcomes = self._pending[0].call, self._pending[0].outcomes
        limit_s = self._deadlines.limit_s(call)
        while missing := self._missing():
            left_s = self._since_s + limit_s - self._now()
            if left_s <= 0:
                late = self._inquest.missed_deadline(self._crew, call, missing, limit_s)
                raise _CrewFailedError(late)
            self._receive(min(left_s, self._saves_left_s()))
        self._pending.popleft()
        now_s = self._now()
        elapsed_s, self._since_s = now_s - self._since_s, now_s
        return {name: outcomes[name] for name in self._crew.workers}, elapsed_s

    def _missing(self) -> list[str]:
        """Workers that have not answered the oldest call."""
        return [name for name in self._crew.workers if name not in self._pending[0].outcomes]

    def _saves_left_s(self) -> float:
        """Time until the oldest save is late. Raises _CrewFailedError once it is."""
        save = self._keeper.awaited()
        if save is None:
            return math.inf
        if save.left_s <= 0:
            limit_s = self._deadlines.limit_s(save.call)
            late = self._inquest.missed_deadline(self._crew, save.call, save.missing, limit_s)
            raise _CrewFailedError(late)
        return save.left_s

    def _receive(self, timeout_s: float) -> None:
        """Take what has come. A failure that comes together with the last answer to the oldest call
        waits for the next time: that step is done, and the failure is one of a later step.
        """
        failures, self._failures = self._failures, []
        if not failures:
            failures = self._take(timeout_s)
            if failures and self._pending and not self._missing():
                self._failures = failures
                return
        if failures:
            raise _CrewFailedError(self._inquest.failed(self._crew, failures))
        if silent := self._heartbeats.beat():
            limit_s = self._config.cluster.heartbeat_timeout_s
            raise _CrewFailedError(self._inquest.fell_silent(self._crew, silent, limit_s))

    def _take(self, timeout_s: float) -> list[WorkerFailure]:
        """Keep the answers that come within `timeout_s`; return those that are failures."""
        failures = []
        for reply in self._crew.poll(min(timeout_s, EVERY_S)):
            if isinstance(reply.outcome, WorkerFailure):
                failures.append(reply.outcome)
                continue
            self._heartbeats.heard(reply.worker, ping=isinstance(reply.outcome, Progress))
            if isinstance(reply.outcome, Saved):
                self._keeper.add(reply.call.step, reply.outcome)
                continue
            for pending in self._pending:
                if pending.call == reply.call:
                    pending.outcomes[reply.worker] = reply.outcome
        return failures
