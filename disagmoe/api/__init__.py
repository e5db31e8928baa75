"""The Python way in: `Trainer(RunConfig.load("run.toml")).fit()` returns a `Result`."""

from disagmoe.actors.events import (
    CheckpointSaved,
    EvalResult,
    RunPlaced,
    RunResumed,
    RunStarted,
    ScheduleTuned,
    StepResult,
)
from disagmoe.api.callback import Callback
from disagmoe.api.result import Result, RunFailedError
from disagmoe.api.resume import saved_config
from disagmoe.api.trainer import Trainer
from disagmoe.config.run import RunConfig

__all__ = [
    "Callback",
    "CheckpointSaved",
    "EvalResult",
    "Result",
    "RunConfig",
    "RunFailedError",
    "RunPlaced",
    "RunResumed",
    "RunStarted",
    "ScheduleTuned",
    "StepResult",
    "Trainer",
    "saved_config",
]
