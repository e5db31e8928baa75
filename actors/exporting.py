"""Metrics of the processes of a run: from reports and events to endpoints and their list.

Nothing here ends a run: what cannot be served or written is logged.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from disagmoe.actors.events import EvalResult, Event, RunEnded, RunStarted, StepResult
from disagmoe.actors.messages import FailureKind, RunPlan, Started, WorkerAssignment
from disagmoe.metrics.discovery import DISCOVERY_FILE, DRIVER, Target, groups, write_groups
from disagmoe.metrics.endpoint import Endpoint, serve
from disagmoe.metrics.run import RunMetrics, StepFigures
from disagmoe.metrics.worker import WorkerMetrics
from disagmoe.runtime.report import StepReport
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.schedule.layout import Worker

log = logging.getLogger(__name__)


class WorkerExporter:
    """The metrics of a worker from when it is connected."""

    def __init__(self, assignment: WorkerAssignment, runtime: WorkerRuntime) -> None:
        self._runtime = runtime

        def last_progress_s() -> float:
            return time.time() - (time.monotonic() - runtime.interpreter.progressed_at_s)

        self._metrics = WorkerMetrics(
            Worker.parse(assignment.worker), runtime.sending, last_progress_s, time.monotonic
        )
        self._endpoint = serve(
            self._metrics.board.registry, assignment.host, assignment.metrics_port
        )

    @property
    def port(self) -> int | None:
        """Where they are served, if they are."""
        return None if self._endpoint is None else self._endpoint.port

    def step(self, report: StepReport) -> None:
        """Count a step."""
        traffic = report.traffic
        self._metrics.step(
            report.seconds,
            {channel: sent.nbytes for channel, sent in traffic.items()},
            {channel: sent.messages for channel, sent in traffic.items()},
            report.peak_memory_bytes,
        )

    def paused(self, seconds: dict[str, float]) -> None:
        """Count time between steps that no step reports."""
        self._metrics.paused(seconds)

    def close(self) -> None:
        """Stop serving."""
        if self._endpoint is not None:
            self._endpoint.close()


class RunExporter:
    """The metrics of a run, and the list of all its endpoints; in the driver's process."""

    def __init__(self, plan: RunPlan) -> None:
        self.metrics = RunMetrics(plan.config, [str(kind) for kind in FailureKind], time.time)
        self._run = Path(plan.run_dir).name
        self._host = plan.host
        self._files = [Path(plan.run_dir) / DISCOVERY_FILE]
        if plan.config.metrics.targets_dir:
            self._files.append(Path(plan.config.metrics.targets_dir) / f"{self._run}.json")
        self._targets: list[Target] = []
        self._endpoint: Endpoint | None = serve(
            self.metrics.board.registry,
            plan.host,
            plan.config.metrics.port_base,
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
            case _:
                pass

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
def run_exporter(plan: RunPlan) -> Iterator[RunExporter]:
    """Serve the metrics of the run of `plan` during the block."""
    exporter = RunExporter(plan)
    try:
        yield exporter
    finally:
        exporter.close()
