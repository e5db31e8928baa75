"""When the state of training is saved, where, and how long it is kept."""

from pydantic import Field

from disagmoe.config.base import Section


class CheckpointConfig(Section):
    """Saving the state of training, so that a run can go on after whatever ends it."""

    folder: str = ""
    """Where checkpoints go: a path that all nodes share, or a URI that pyarrow.fs opens, such as
    `s3://bucket/run?region=eu-west-1`; nothing else may save there. "" takes `checkpoints` in the
    run directory."""
    interval_steps: int = Field(default=0, ge=0)
    """Save each time this many steps are done, counted from the first; 0 never does."""
    interval_s: float = Field(default=1800.0, ge=0)
    """Save after the step under way when this much time has passed since the last save or the
    start; 0 never does."""
    at_end: bool = True
    """Save after the last step."""
    on_stop: bool = True
    """Save after the last step of a run that is stopped by Ctrl-C or SIGTERM."""
    keep_last: int = Field(default=3, ge=0)
    """Checkpoints that are kept: when one more is complete, the oldest are deleted. 0 keeps all."""
    timeout_s: float = Field(default=1800.0, gt=0)
    """Longest time for all workers to write or to read a checkpoint, before the run ends with a
    report."""

    def saves_after(self, step: int, steps: int) -> bool:
        """Whether the number of a step, from 0, asks for a save after it, in a run of `steps`."""
        done = step + 1
        by_number = self.interval_steps > 0 and done % self.interval_steps == 0
        return by_number or (self.at_end and done == steps)
