"""Training from Python; `disagmoe train` is a thin layer over this."""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

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
    devices_of,
)
from disagmoe.actors.messages import ResumePoint
from disagmoe.api.callback import Callback
from disagmoe.api.grace import short_grace
from disagmoe.api.preflight import preflight
from disagmoe.api.result import Result, RunFailedError, has_result
from disagmoe.api.resume import Resume, continued, find_resume, goes_on
from disagmoe.api.rundir import RunDir, check_folder, check_free, default_run_dir, run_id
from disagmoe.api.sinks import sinks
from disagmoe.api.tally import Tally, outcome
from disagmoe.checkpoint.catalogue import check_unused
from disagmoe.checkpoint.find import run_folder
from disagmoe.cluster.join import Target, choose, joined
from disagmoe.cluster.processes import PeakMemory
from disagmoe.cluster.session import run_session
from disagmoe.cluster.signals import Termination, deferred, sigterm_raises
from disagmoe.config.run import RunConfig
from disagmoe.errors import PlacementError, WorkerError
from disagmoe.metrics.peaks import mfu
from disagmoe.runtime.trace import TRACE_FILE, write_trace
from disagmoe.storage import Location


@dataclass(frozen=True, slots=True)
class _Start:
    """What a run begins with."""

    config: RunConfig
    """Resolved."""
    target: Target
    """Where it runs."""
    checkpoints: Location
    """Where it saves."""
    point: ResumePoint | None = None
    """Where it goes on, None at its first step."""
    news: Sequence[str] = ()
    """How it differs from the run that was saved."""


class Trainer:
    """One run of `config`, from its first step or from a checkpoint."""

    def __init__(
        self,
        config: RunConfig,
        *,
        run_dir: str | Path | None = None,
        resume: str | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """`resume` goes on from a checkpoint: `D[@STEP]` or `auto`, see `find_resume`. `run_dir`
        must be new or empty, unless it is that of the run that goes on; None takes the latter, or
        `runs/NAME-DATE-TIME`.

        Raises:
            ConfigError, CheckpointError, StorageError: there is no such checkpoint.
        """
        self._config = config
        self._callbacks = tuple(callbacks)
        own = Path(run_dir) if run_dir is not None else None
        self._resume = find_resume(resume, own, config) if resume else Resume(None, None)
        self._given_dir = (
            self._resume.run_dir or own or default_run_dir(config.name, time.localtime())
        )
        self.run_dir = self._given_dir.absolute()

    def fit(self) -> Result:
        """Train, and return the result, which is `result.json` in the run directory as well.

        An interrupt (KeyboardInterrupt, or SystemExit, which SIGTERM raises) lets the step under
        way end and saves its state, for at most `cluster.stop_grace_s`, writes the result, and goes
        on to the caller; a second one does not wait.

        Raises:
            ConfigError, DataError, CheckpointError: the run cannot start; nothing is written.
            PlacementError: the workers have no place, or cannot run where they are.
            RunFailedError: a worker failed. It carries the result.
        """
        began_s = time.monotonic()
        target = choose(self._config.cluster, os.environ)
        check_folder(self._given_dir, os.environ)
        with joined(target) as there:
            start = self._start(there)
            if (result := self._result_if_done(start)) is not None:
                return result
            with closing(self._open_run_dir(start)) as run_dir:
                return self._fit(start, run_dir, began_s)

    def _fit(self, start: _Start, run_dir: RunDir, began_s: float) -> Result:
        tally = Tally(config=start.config)
        if start.point is not None:
            tally.before, tally.checkpoint = start.point.done, start.point.place
        raised: BaseException | None = None
        with sigterm_raises() as termination, PeakMemory(os.getpid()) as memory:
            try:
                self._train(start, run_dir, tally, termination)
            except BaseException as error:  # noqa: BLE001 - raised again once the result is written
                raised = error
        status, first_error = outcome(tally, raised)
        elsewhere_bytes = 0 if start.target.is_own else tally.peak_bytes
        result = tally.result(
            status,
            first_error=first_error,
            peak_memory_total_bytes=memory.peak_bytes + elsewhere_bytes,
            elapsed_s=time.monotonic() - began_s,
            path=run_dir.path,
        )
        if result.tokens_per_s is not None and tally.placed is not None:
            devices = devices_of(tally.placed)
            result = replace(result, mfu=mfu(start.config, devices, result.tokens_per_s))
        with deferred():
            run_dir.write_result(result)
        for callback in self._callbacks:
            callback.on_end(result)
        if raised is not None and not isinstance(raised, WorkerError):
            raise raised
        if status == "failed" and tally.unfit:
            raise PlacementError(first_error)
        if status == "failed":
            raise RunFailedError(result) from raised
        return result

    def _start(self, target: Target) -> _Start:
        """Refuse what cannot run before anything is written."""
        found, goes_on = self._resume.found, self._resume.run_dir is not None
        if not goes_on:
            check_free(self.run_dir)
        checkpoints = run_folder(self._config.checkpoint.folder, str(self.run_dir))
        if found is None or str(found.folder.place) != str(checkpoints):
            check_unused(checkpoints)
        if found is not None:
            config, point, news = continued(self._config, found, checkpoints, target)
            return _Start(config, target, checkpoints, point, [*self._resume.news, *news])
        anew = [f"{checkpoints} holds no complete checkpoint; the run begins anew"]
        config = preflight(self._config, target)
        return _Start(config, target, checkpoints, news=anew if goes_on else [])

    def _result_if_done(self, start: _Start) -> Result | None:
        """The result of a run that would go on in its directory but has done all its steps."""
        if self._resume.run_dir is None or start.point is None:
            return None
        if start.point.step < start.config.train.steps or not has_result(self.run_dir):
            return None
        result = Result.load(self.run_dir)
        if result.status != "ok":
            return None
        for callback in self._callbacks:
            callback.on_end(result)
        return result

    def _open_run_dir(self, start: _Start) -> RunDir:
        if self._resume.run_dir is None:
            return RunDir(self.run_dir, start.config)
        return RunDir.reopen(self.run_dir, start.config, start.point.step if start.point else 0)

    def _train(
        self, start: _Start, run_dir: RunDir, tally: Tally, termination: Termination
    ) -> None:
        for callback in self._callbacks:
            callback.on_begin(start.config, run_dir.path)
        name = run_id(run_dir.path)
        known_as = "" if start.target.is_own else f", where its name is {name}"
        self._say(f"uses {start.target}{known_as}")
        if text := short_grace(os.environ, start.config.cluster.stop_grace_s):
            self._say(text)
        for text in (*start.news, *run_dir.news):
            self._say(text)
        with (
            run_session(
                start.config,
                str(run_dir.path),
                start.target,
                name,
                self._say,
                checkpoints=str(start.checkpoints),
                resume=start.point,
                go_on=partial(goes_on, start.config, start.checkpoints, start.point),
            ) as session,
            sinks(start.config, run_dir.path, session.host) as watched,
        ):
            try:
                self._follow(_until(termination, watched(session.events())), tally, run_dir)
            except (KeyboardInterrupt, SystemExit):
                # a signal to the whole process group may have ended the driver as well
                with suppress(WorkerError):
                    session.request_stop()
                    events = session.events(for_s=start.config.cluster.stop_grace_s)
                    self._follow(watched(events), tally, run_dir)
                raise

    def _say(self, text: str) -> None:
        for callback in self._callbacks:
            callback.on_notice(text)

    def _follow(self, events: Iterable[Event], tally: Tally, run_dir: RunDir) -> None:
        for event in events:
            tally.add(event)
            match event:
                case StepResult():
                    run_dir.metrics.step(event)
                case EvalResult():
                    run_dir.metrics.evaluation(event)
                case ScheduleTuned():
                    run_dir.write_config(event.config)
                    tally.config = event.config
                case RunRestarting():
                    run_dir.metrics.restarted(event.step)
                case StepTraced():
                    write_trace(self.run_dir / TRACE_FILE, tally.traces)
                case RunPlaced() | RunStarted() | RunResumed() | CheckpointSaved() | RunEnded():
                    pass
            for callback in self._callbacks:
                _tell(callback, event)


def _until(termination: Termination, events: Iterable[Event]) -> Iterator[Event]:
    for event in events:
        termination.look()
        yield event


def _tell(callback: Callback, event: Event) -> None:
    match event:
        case RunPlaced():
            callback.on_place(event)
        case RunStarted():
            callback.on_start(event)
        case StepResult():
            callback.on_step(event)
        case EvalResult():
            callback.on_eval(event)
        case ScheduleTuned():
            callback.on_tuned(event)
        case RunRestarting():
            callback.on_restart(event)
        case RunResumed():
            callback.on_resumed(event)
        case CheckpointSaved():
            callback.on_checkpoint(event)
        case StepTraced() | RunEnded():
            pass
