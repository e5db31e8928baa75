"""What a user's code may do while a run goes on."""

from pathlib import Path

from disagmoe.actors.events import (
    CheckpointSaved,
    EvalResult,
    RunPlaced,
    RunResumed,
    RunStarted,
    ScheduleTuned,
    StepResult,
)
from disagmoe.api.result import Result
from disagmoe.config.run import RunConfig


class Callback:
    """Override what you need. Methods are called in the script, in order, one at a time.

    An exception ends the run: its result says so, and `Trainer.fit` raises the exception again.
    Workers go on while a method runs, so a slow one delays only what the script shows.
    """

    def on_begin(self, config: RunConfig, run_dir: Path) -> None:
        """The resolved config is accepted and the run directory is there; workers are starting."""

    def on_notice(self, text: str) -> None:
        """Something that a person wants to know before workers start: which Ray is used, whom the
        run waits for, and what differs from the run that goes on here."""

    def on_place(self, placed: RunPlaced) -> None:
        """All workers are on their nodes, and see the files of the run."""

    def on_start(self, started: RunStarted) -> None:
        """All workers are connected."""

    def on_resumed(self, resumed: RunResumed) -> None:
        """All workers have the state of a checkpoint."""

    def on_checkpoint(self, saved: CheckpointSaved) -> None:
        """A checkpoint is complete."""

    def on_step(self, step: StepResult) -> None:
        """A step is done."""

    def on_tuned(self, tuned: ScheduleTuned) -> None:
        """The steps from now on run on a schedule made for what the steps before have cost."""

    def on_eval(self, evaluation: EvalResult) -> None:
        """An evaluation is done."""

    def on_end(self, result: Result) -> None:
        """The run has ended in whatever way, and its result is written."""
