"""A run that goes on after failures: one session after the other, each with workers of its own.

The script owns it, since workers and driver die with each other, and places only with the script.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from disagmoe.actors.events import (
    Event,
    RunEnded,
    RunPlaced,
    RunRestarting,
    RunResumed,
    StepResult,
)
from disagmoe.actors.messages import FailureKind, ResumePoint, WorkerFailure
from disagmoe.actors.recovery import DRIVER, Fault, GiveUp, decide, fault_of
from disagmoe.config.recovery import RecoveryConfig
from disagmoe.config.run import RunConfig
from disagmoe.errors import DisagMoEError, WorkerError

_POLL_S = 0.25
"""See session.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What workers are started with."""

    number: int
    config: RunConfig
    resume: ResumePoint | None
    leave_out: frozenset[str] = frozenset()
    """Nodes to do without, if others can take their place."""


class EpochSession(Protocol):
    """One epoch under way."""

    def events(self, for_s: float = ...) -> Iterator[Event]:
        """See Session."""

    def request_stop(self) -> None:
        """See Session."""

    def end(self) -> None:
        """Kill the driver and with it the workers."""


class Recovering:
    """See Session, of whose epochs this is a chain."""

    def __init__(
        self,
        first: Epoch,
        launch: Callable[[Epoch], EpochSession],
        go_on: Callable[[], tuple[RunConfig, ResumePoint | None]],
        config: RecoveryConfig,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        *,
        host: str = "",
    ) -> None:
        """`go_on` finds the last complete checkpoint, None for the beginning, and the config that
        goes on from there."""
        self.host = host
        """Address of this machine that others of the run reach."""
        self._epoch = first
        self._launch = launch
        self._go_on = go_on
        self._config = config
        self._now = now
        self._sleep = sleep
        self._session: EpochSession | None = launch(first)
        self._history: list[Fault] = []
        self._nodes: Mapping[str, str] = {}
        self._steps_done = first.resume.step if first.resume else 0
        self._resume_at_s = 0.0
        self._stop_requested = False
        self._ended = False

    def events(self, for_s: float = float("inf")) -> Iterator[Event]:
        """Yield events as they come, up to and including RunEnded, for at most `for_s` seconds.

        May be called again after an interrupt, and goes on where it was.
        """
        end_s = self._now() + for_s
        while not self._ended and self._now() < end_s:
            if self._session is None:
                yield from self._start_again()
                continue
            for event in self._of(self._session, end_s - self._now()):
                if isinstance(event, RunEnded) and event.status == "failed":
                    yield from self._failed(event)
                    break
                self._see(event)
                yield event

    def request_stop(self) -> None:
        """Ask for an end after the step under way, or of the pause before a restart."""
        self._stop_requested = True
        if self._session is not None:
            self._session.request_stop()

    def close(self) -> None:
        """End what is under way."""
        if self._session is not None:
            self._session.end()
            self._session = None

    def _of(self, session: EpochSession, for_s: float) -> Iterator[Event]:
        """The events of an epoch; the death of its driver is one of them."""
        try:
            yield from session.events(for_s)
        except WorkerError as error:
            kind = FailureKind.DIED if "died" in str(error) else FailureKind.SILENT
            failure = WorkerFailure(worker=DRIVER, kind=kind, message=str(error), at_s=time.time())
            yield RunEnded(status="failed", failures=(failure,))

    def _see(self, event: Event) -> None:
        match event:
            case RunPlaced():
                self._nodes = {seat.worker: seat.node for seat in event.seats}
            case RunResumed():
                self._steps_done = event.step
            case StepResult():
                self._steps_done = event.step + 1
            case RunEnded():
                self._ended = True
            case _:
                pass

    def _failed(self, ended: RunEnded) -> Iterator[Event]:
        """End the epoch; yield that the run ends, or that it will go on."""
        self.close()
        fault = fault_of(ended.failures, self._now(), self._steps_done, self._nodes)
        self._history.append(fault)
        decision = decide(self._history, self._config)
        if self._stop_requested:
            decision = GiveUp("not started again: the run was asked to stop")
        if isinstance(decision, GiveUp):
            self._ended = True
            yield RunEnded(status="failed", failures=ended.failures, note=decision.reason)
            return
        try:
            config, resume = self._go_on()
        except DisagMoEError as error:
            self._ended = True
            note = f"not started again: {error}"
            yield RunEnded(status="failed", failures=ended.failures, note=note)
            return
        self._epoch = Epoch(
            number=self._epoch.number + 1,
            config=config,
            resume=resume,
            leave_out=decision.leave_out,
        )
        step = resume.step if resume else 0
        self._resume_at_s = self._now() + decision.pause_s
        yield RunRestarting(
            epoch=self._epoch.number,
            cause=fault.cause,
            message=fault.message,
            failures=ended.failures,
            step=step,
            steps_lost=self._steps_done - step,
            pause_s=decision.pause_s,
        )
        self._steps_done = step

    def _start_again(self) -> Iterator[Event]:
        if self._stop_requested:
            self._ended = True
            yield RunEnded(status="stopped")
        elif self._now() < self._resume_at_s:
            self._sleep(_POLL_S)
        else:
            self._session = self._launch(self._epoch)
