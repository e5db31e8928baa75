"""The metrics of a run as a whole, and the list of all its endpoints: from events.

Lives in the script's process, which outlives the workers. Nothing here ends a run: what cannot be
served or written is logged.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
from disagmoe.actors.messages import Started
from disagmoe.actors.recovery import Cause
from disagmoe.config.run import RunConfig
from disagmoe.metrics.discovery import DISCOVERY_FILE, DRIVER, Target, groups, write_groups
from disagmoe.metrics.endpoint import serve
from disagmoe.metrics.run import RunMetrics, StepFigures
from disagmoe.schedule.layout import Worker

log = logging.getLogger(__name__)


class RunExporter:
    """The metrics of a run, and the list of all its endpoints."""

    def __init__(self, config: RunConfig, run_dir: Path, host: str) -> None:
        """`host` is the address of this machine to serve at."""
        self.metrics = RunMetrics(config, [str(cause) for cause in Cause], time.time)
        self._run = run_dir.name
        self._host = host
        self._files = [run_dir / DISCOVERY_FILE]
        if config.metrics.targets_dir:
            self._files.append(Path(config.metrics.targets_dir) / f"{self._run}.json")
        self._targets: list[Target] = []
        self._endpoint = serve(
            self.metrics.board.registry,
            host,
            config.metrics.port_base,
            lambda: groups(self._run, self._targets),
        )

    def observe(self, event: Event) -> None:
        """Take in what the run tells the script."""
        match event:
            case RunStarted():
                self._started(event.workers)
            case StepResult():
                self.metrics.step(_figures(event))
            case EvalResult():
                self.metrics.evaluation(event.loss)
            case RunEnded():
                self._publish([])  # who watches is not to take the end for a failure
            case RunPlaced():
                self.metrics.placed(devices_of(event))
            case RunResumed():
                self.metrics.resumed(event.step)
            case RunRestarting():
                self.metrics.restarting(event.cause, event.step, event.steps_lost)
            case CheckpointSaved():
                self.metrics.checkpoint_durable(time.time() - event.elapsed_s)
            case ScheduleTuned() | StepTraced():
                pass  # no metric tells of them

    def _started(self, workers: tuple[Started, ...]) -> None:
        versions = workers[0].versions
        self.metrics.build(
            *(versions.get(name, "unknown") for name in ("disagmoe", "python", "torch"))
        )
        targets = [
            Target(
                instance=one.worker,
                stage=str(Worker.parse(one.worker).group),
                host=one.host,
                port=one.metrics_port,
            )
            for one in workers
            if one.metrics_port is not None
        ]
        if self._endpoint is not None:
            port = self._endpoint.port
            targets.append(Target(instance=DRIVER, stage=DRIVER, host=self._host, port=port))
        self._publish(targets)

    def _publish(self, targets: list[Target]) -> None:
        self._targets = targets
        try:
            write_groups(self._files, groups(self._run, targets))
        except OSError:
            log.exception("cannot write where the metrics are")

    def close(self) -> None:
        """Stop serving, and list nothing any more."""
        self._publish([])
        if self._endpoint is not None:
            self._endpoint.close()


def _figures(step: StepResult) -> StepFigures:
    return StepFigures(
        step=step.step,
        loss=step.loss,
        balance=step.balance,
        z=step.z,
        grad_norm=step.grad_norm,
        lr=step.lr,
        tokens=step.tokens,
        skipped=bool(step.skipped),
        step_s=step.step_s,
        expert_load=step.expert_load,
        expert_variation=step.expert_variation,
        dead_experts=step.dead_experts,
    )


@contextmanager
def run_exporter(config: RunConfig, run_dir: Path, host: str) -> Iterator[RunExporter]:
    """Serve the metrics of a run during the block."""
    exporter = RunExporter(config, run_dir, host)
    try:
        yield exporter
    finally:
        exporter.close()
