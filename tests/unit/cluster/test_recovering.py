"""A chain of sessions, without Ray."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from disagmoe.actors.events import Event, RunEnded, RunRestarting
from disagmoe.actors.messages import FailureKind, ResumePoint, WorkerFailure
from disagmoe.checkpoint.manifest import Done
from disagmoe.cluster.recovering import Epoch, Recovering
from disagmoe.config.recovery import RecoveryConfig
from disagmoe.config.run import RunConfig
from disagmoe.data.position import Origin
from disagmoe.errors import CheckpointError, WorkerError
from tests.unit.api.runs import placed, started, step

CONFIG = RunConfig.load(Path(__file__).resolve().parents[3] / "configs/tiny.toml")
POINT = ResumePoint(
    place="/c/step-1",
    done=Done(step=1, updates=1, tokens=9, first_loss=5.0),
    origin=Origin(1),
    programs_sha256="00",
)
DIED = WorkerFailure(worker="F0.0", kind=FailureKind.DIED, message="F0.0 died", at_s=0)
FAILED = RunEnded(status="failed", failures=(DIED,))
OK = RunEnded(status="ok")


class Script:
    """A session that says what it is told to."""

    def __init__(self, events: Sequence[Event | Exception]) -> None:
        self._events = list(events)
        self.stopped = self.ended = False

    def events(self, for_s: float = 0.0) -> Iterator[Event]:
        while self._events:
            event = self._events.pop(0)
            if isinstance(event, Exception):
                raise event
            yield event

    def request_stop(self) -> None:
        self.stopped = True

    def end(self) -> None:
        self.ended = True


class Chain:
    """Scripts for one epoch after the other."""

    def __init__(self, *scripts: Sequence[Event | Exception], **settings: Any) -> None:
        self.sessions = [Script(script) for script in scripts]
        self.epochs: list[Epoch] = []
        self.slept_s = 0.0
        self.point: ResumePoint | Exception | None = POINT
        self.run = Recovering(
            Epoch(number=0, config=CONFIG, resume=None),
            self.launch,
            self.go_on,
            RecoveryConfig(max_failures=2, backoff_s=1.0, **settings),
            now=lambda: self.slept_s,
            sleep=self.sleep,
        )

    def launch(self, epoch: Epoch) -> Script:
        self.epochs.append(epoch)
        return self.sessions[epoch.number]

    def go_on(self) -> tuple[RunConfig, ResumePoint | None]:
        if isinstance(self.point, Exception):
            raise self.point
        return CONFIG, self.point

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


def test_a_run_goes_on_from_its_last_checkpoint() -> None:
    chain = Chain([placed(), started(), step(0), step(1), step(2), FAILED], [step(1), step(2), OK])
    restarting = RunRestarting(
        epoch=1,
        cause="died",
        message="F0.0 died",
        failures=(DIED,),
        step=1,
        steps_lost=2,
        pause_s=1.0,
    )
    begun = [placed(), started(), step(0), step(1), step(2)]
    assert list(chain.run.events()) == [*begun, restarting, step(1), step(2), OK]
    assert [(epoch.number, epoch.resume) for epoch in chain.epochs] == [(0, None), (1, POINT)]
    assert chain.sessions[0].ended
    assert chain.slept_s == 1.0


def test_a_dead_driver_is_a_failure_like_others() -> None:
    chain = Chain([step(0), WorkerError("the driver has died: killed")], [OK])
    chain.point = None
    _, restarting, last = chain.run.events()
    assert isinstance(restarting, RunRestarting)
    assert (restarting.cause, restarting.step, restarting.steps_lost) == ("driver", 0, 1)
    assert last == OK


def test_too_many_failures_end_the_run() -> None:
    chain = Chain([FAILED], [FAILED], [FAILED])
    *_, last = chain.run.events()
    assert last == RunEnded(
        status="failed",
        failures=(DIED,),
        note="not started again: 3 failures within 1 h 00 min (recovery.max_failures = 2)",
    )
    assert all(session.ended for session in chain.sessions)


def test_a_run_without_a_readable_checkpoint_ends_with_the_first_cause() -> None:
    chain = Chain([FAILED])
    chain.point = CheckpointError("/c is damaged")
    (last,) = chain.run.events()
    note = "not started again: /c is damaged"
    assert last == RunEnded(status="failed", failures=(DIED,), note=note)


def test_workers_that_do_not_fit_their_nodes_are_not_started_again() -> None:
    unfit = WorkerFailure(worker="F0.0", kind=FailureKind.UNFIT, message="F0.0 is unfit", at_s=0)
    chain = Chain([RunEnded(status="failed", failures=(unfit,))])
    assert list(chain.run.events()) == [RunEnded(status="failed", failures=(unfit,))]


def test_a_stop_in_the_pause_ends_the_run() -> None:
    chain = Chain([step(0), FAILED])
    events = chain.run.events()
    assert [type(next(events)) for _ in range(2)] == [type(step(0)), RunRestarting]
    chain.run.request_stop()
    assert list(events) == [RunEnded(status="stopped")]


def test_a_failure_after_a_stop_is_not_recovered_from() -> None:
    chain = Chain([step(0), FAILED])
    events = chain.run.events()
    next(events)
    chain.run.request_stop()
    assert chain.sessions[0].stopped
    (last,) = events
    assert isinstance(last, RunEnded)
    assert last.note == "not started again: the run was asked to stop"
