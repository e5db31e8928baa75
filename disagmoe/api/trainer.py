"""Training from Python; `disagmoe train` is a thin layer over this."""

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from disagmoe.actors.events import (
    EvalResult,
    Event,
    RunEnded,
    RunStarted,
    ScheduleTuned,
    StepResult,
    StepTraced,
)
from disagmoe.api.callback import Callback
from disagmoe.api.exporting import run_exporter
from disagmoe.api.preflight import preflight
from disagmoe.api.result import Result, RunFailedError
from disagmoe.api.rundir import RunDir, check_free, default_run_dir
from disagmoe.api.steplogs import StepLogs
from disagmoe.api.tally import Tally, outcome
from disagmoe.cluster.processes import PeakMemory
from disagmoe.cluster.session import local_session
from disagmoe.cluster.signals import deferred, sigterm_raises
from disagmoe.config.run import RunConfig
from disagmoe.errors import WorkerError
from disagmoe.metrics.flops import mfu
from disagmoe.runtime.trace import TRACE_FILE, write_trace

STOP_GRACE_S = 10.0
"""How long the step under way may take to end after the first Ctrl-C or SIGTERM."""


class Trainer:
    """One run of `config`."""

    def __init__(
        self,
        config: RunConfig,
        *,
        run_dir: str | Path | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """`run_dir` must be new or empty; None takes `runs/NAME-DATE-TIME`."""
        self._config = config
        self._callbacks = tuple(callbacks)
        self.run_dir = Path(run_dir or default_run_dir(config.name, time.localtime())).absolute()

    def fit(self) -> Result:
        """Train, and return the result, which is `result.json` in the run directory as well.

        An interrupt (KeyboardInterrupt, or SystemExit, which SIGTERM raises) lets the step under
        way end, for at most 10 s, writes the result, and goes on to the caller; a second one does
        not wait.

        Raises:
            ConfigError, DataError: the run cannot start; nothing is written.
            PlacementError: this machine cannot hold the workers.
            RunFailedError: a worker failed. It carries the result.
        """
        began_s = time.monotonic()
        check_free(self.run_dir)
        config = preflight(self._config)
        run_dir = RunDir(self.run_dir, config)
        tally = Tally()
        raised: BaseException | None = None
        with sigterm_raises(), PeakMemory(os.getpid()) as memory:
            try:
                self._train(config, run_dir, tally)
            except BaseException as error:  # noqa: BLE001 - raised again once the result is written
                raised = error
        status, first_error = outcome(tally, raised)
        result = tally.result(
            status,
            first_error=first_error,
            peak_memory_total_bytes=memory.peak_bytes,
            elapsed_s=time.monotonic() - began_s,
            path=run_dir.path,
        )
        if result.tokens_per_s is not None:
            result = replace(result, mfu=mfu(config, result.tokens_per_s))
        with deferred():
            run_dir.write_result(result)
        for callback in self._callbacks:
            callback.on_end(result)
        if raised is not None and not isinstance(raised, WorkerError):
            raise raised
        if status == "failed":
            raise RunFailedError(result) from raised
        return result

    def _train(self, config: RunConfig, run_dir: RunDir, tally: Tally) -> None:
        for callback in self._callbacks:
            callback.on_begin(config, run_dir.path)
        with (
            closing(StepLogs(run_dir.path, config)) as metrics,
            local_session(config, str(run_dir.path)) as session,
            run_exporter(config, run_dir.path, session.host) as exporter,
        ):
            try:
                self._follow(exporter.watched(session.events()), tally, metrics, run_dir)
            except (KeyboardInterrupt, SystemExit):
                # a signal to the whole process group may have ended the driver as well
                with suppress(WorkerError):
                    session.request_stop()
                    events = exporter.watched(session.events(for_s=STOP_GRACE_S))
                    self._follow(events, tally, metrics, run_dir)
                raise

    def _follow(
        self, events: Iterable[Event], tally: Tally, metrics: StepLogs, run_dir: RunDir
    ) -> None:
        for event in events:
            tally.add(event)
            match event:
                case StepResult():
                    metrics.step(event)
                case EvalResult():
                    metrics.evaluation(event)
                case ScheduleTuned():
                    run_dir.write_config(event.config)
                case StepTraced():
                    write_trace(self.run_dir / TRACE_FILE, tally.traces)
                case RunStarted() | RunEnded():
                    pass
            for callback in self._callbacks:
                _tell(callback, event)


def _tell(callback: Callback, event: Event) -> None:
    match event:
        case RunStarted():
            callback.on_start(event)
        case StepResult():
            callback.on_step(event)
        case EvalResult():
            callback.on_eval(event)
        case ScheduleTuned():
            callback.on_tuned(event)
        case StepTraced() | RunEnded():
            pass
