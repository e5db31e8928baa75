"""The metrics of a worker's process: from reports to an endpoint."""

import time

from disagmoe.actors.messages import WorkerAssignment
from disagmoe.metrics.endpoint import serve
from disagmoe.metrics.worker import WorkerMetrics
from disagmoe.runtime.report import StepReport
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.schedule.layout import Worker


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
