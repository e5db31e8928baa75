"""The Python way in: `Trainer(RunConfig.load("run.toml")).fit()` returns a `Result`."""

from disagmoe.actors.events import EvalResult, RunPlaced, RunStarted, ScheduleTuned, StepResult
from disagmoe.api.callback import Callback
from disagmoe.api.result import Result, RunFailedError
from disagmoe.api.trainer import Trainer
from disagmoe.config.run import RunConfig

__all__ = [
    "Callback",
    "EvalResult",
    "Result",
    "RunConfig",
    "RunFailedError",
    "RunPlaced",
    "RunStarted",
    "ScheduleTuned",
    "StepResult",
    "Trainer",
]
