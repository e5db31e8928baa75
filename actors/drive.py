"""The loop that drives a run: calls queued ahead, replies merged, deadlines kept, one end.

Knows nothing of Ray: the workers are a Crew.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from disagmoe.actors.calls import Deadlines, calls
from disagmoe.actors.crew import Crew, all_of
from disagmoe.actors.events import (
    Event,
    RunEnded,
    RunPlaced,
    RunStarted,
    ScheduleTuned,
    StepTraced,
)
from disagmoe.actors.failure import unfit
from disagmoe.actors.inquest import Inquest
from disagmoe.actors.merge import merge_eval, merge_step
from disagmoe.actors.messages import (
    Adopted,
    Call,
    Located,
    Outcome,
    Started,
    WorkerAssignment,
    WorkerFailure,
)
from disagmoe.config.run import RunConfig
from disagmoe.errors import PlacementError
from disagmoe.runtime.report import EvalReport, StepReport
from disagmoe.runtime.trace import WorkerTrace

Traces = Mapping[str, WorkerTrace]
"""What each worker did in one step."""

Settle = Callable[[Mapping[str, Located]], tuple[RunPlaced, Sequence[WorkerAssignment]]]
"""From what workers find on their nodes to what they are to set up. Raises PlacementError."""

Retune = Callable[[Sequence[Traces]], tuple[ScheduleTuned, Sequence[WorkerAssignment]]]
"""From the traces of the profiled steps to what the workers are to go on with."""

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
    """One epoch of a run."""

    def __init__(
        self,
        config: RunConfig,
        crew: Crew,
        inquest: Inquest,
        settle: Settle,
        retune: Retune,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._crew = crew
        self._inquest = inquest
        self._settle = settle
        self._retune = retune
        self._now = now
        self._deadlines = Deadlines.of(config.cluster)
        self._pending: deque[_Pending] = deque()
        self._profile: list[Traces] = []
        self._since_s = now()

    def events(self) -> Iterator[Event]:
        """Run to the end. The last event is a RunEnded, before which all workers are killed."""
        try:
            yield from self._run()
        except _CrewFailedError as failed:
            self._crew.kill()
            yield RunEnded(status="failed", failures=failed.failures)

    def _run(self) -> Iterator[Event]:
        yield self._place()
        self._queue(Call("setup"))
        outcomes, _ = self._finish_oldest()
        yield RunStarted(workers=tuple(all_of(Started, outcomes).values()))
        train, profiled = self._config.train, self._config.parallel.profiled_steps
        stopped = yield from self._make(calls(train, range(profiled.stop)))
        if profiled and not stopped:
            yield self._change_programs(profiled[-1])
        if not stopped:
            stopped = yield from self._make(calls(train, range(profiled.stop, train.steps)))
        self._crew.kill()
        yield RunEnded(status="stopped" if stopped else "ok")

    def _place(self) -> Event:
        """See where the workers are, and tell them what follows from it."""
        self._queue(Call("locate"))
        outcomes, _ = self._finish_oldest()
        try:
            placed, assignments = self._settle(all_of(Located, outcomes))
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
            if call.kind == "eval":
                yield merge_eval(call.step, all_of(EvalReport, outcomes), elapsed_s)
                continue
            reports = all_of(StepReport, outcomes)
            result = merge_step(reports, elapsed_s)
            yield result
            yield from self._traced(call.step, reports)
            if result.stopped:
                return True

    def _traced(self, step: int, reports: Mapping[str, StepReport]) -> Iterator[Event]:
        traces = {name: r.trace for name, r in reports.items() if r.trace is not None}
        if step in self._config.parallel.profiled_steps:
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
        self._queue(Call("adopt", step))
        outcomes, _ = self._finish_oldest()
        all_of(Adopted, outcomes)
        return tuned

    def _queue(self, call: Call) -> None:
        self._pending.append(_Pending(call))
        self._crew.start(call)

    def _finish_oldest(self) -> tuple[Mapping[str, Outcome], float]:
        """Wait until all workers have answered the oldest call; return answers and duration."""
        call, outcomes = self._pending[0].call, self._pending[0].outcomes
        limit_s = self._deadlines.limit_s(call)
        while missing := [name for name in self._crew.workers if name not in outcomes]:
            left_s = self._since_s + limit_s - self._now()
            if left_s <= 0:
                late = self._inquest.missed_deadline(self._crew, call, missing, limit_s)
                raise _CrewFailedError(late)
            self._receive(left_s)
        self._pending.popleft()
        now_s = self._now()
        elapsed_s, self._since_s = now_s - self._since_s, now_s
        return {name: outcomes[name] for name in self._crew.workers}, elapsed_s

    def _receive(self, timeout_s: float) -> None:
        for reply in self._crew.poll(timeout_s):
            if isinstance(reply.outcome, WorkerFailure):
                raise _CrewFailedError(self._inquest.failed(self._crew, reply.outcome))
            for pending in self._pending:
                if pending.call == reply.call:
                    pending.outcomes[reply.worker] = reply.outcome
