"""Every log of steps that a run keeps in its directory, as one."""

from pathlib import Path

from disagmoe.actors.events import EvalResult, StepResult
from disagmoe.api.rundir import METRICS_FILE, MetricsLog
from disagmoe.api.tensorboard import TensorBoardLog
from disagmoe.config.run import RunConfig


class StepLogs:
    """`metrics.jsonl`, and event files of TensorBoard where they are asked for."""

    def __init__(self, run_dir: Path, config: RunConfig) -> None:
        self._logs: list[MetricsLog | TensorBoardLog] = [MetricsLog(run_dir / METRICS_FILE, config)]
        if config.metrics.tensorboard:
            self._logs.append(TensorBoardLog(run_dir))

    def step(self, result: StepResult) -> None:
        """Log a step."""
        for log in self._logs:
            log.step(result)

    def evaluation(self, result: EvalResult) -> None:
        """Log the evaluation after the last step."""
        for log in self._logs:
            log.evaluation(result)

    def close(self) -> None:
        """Write what waits and close the files."""
        for log in self._logs:
            log.close()
