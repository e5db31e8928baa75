"""Losses, rates and shares for TensorBoard, in the run directory."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from disagmoe.actors.events import EvalResult, Event, RunRestarting, StepResult
from disagmoe.errors import ConfigError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

TENSORBOARD_FOLDER = "tensorboard"


def check_tensorboard() -> None:
    """Raise ConfigError where TensorBoard's package is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "metrics.tensorboard = true, but the package tensorboard is not installed; "
            "pip install 'disagmoe[tensorboard]', or use false"
        )


class TensorBoardLog:
    """Event files whose steps are those of the run, counted from 1.

    What an earlier part of the run has written from its first step on is hidden by TensorBoard, so
    that after a resume or a restart of workers each step is there once and the axis goes on where
    the checkpoint was.
    """

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / TENSORBOARD_FOLDER
        self._writer: SummaryWriter | None = None

    def observe(self, event: Event) -> None:
        """Take in what the run tells the script."""
        if isinstance(event, StepResult):
            self.step(event)
        elif isinstance(event, EvalResult):
            self.evaluation(event)
        elif isinstance(event, RunRestarting):
            self.close()  # the next file begins at the checkpoint

    def step(self, result: StepResult) -> None:
        """Log a step."""
        writer = self._opened(result.step + 1)
        scalars = {
            "loss/training": result.loss,
            "loss/balance": result.balance,
            "loss/z": result.z,
            "optimizer/grad_norm": result.grad_norm,
            "optimizer/learning_rate": result.lr,
            "speed/tokens_per_s": result.tokens_per_s,
            "speed/step_s": result.step_s,
            "experts/max_over_mean": max(result.expert_load),
            "experts/dead": sum(result.dead_experts),
        }
        for group, shares in result.shares.items():
            scalars[f"utilisation/{group}"] = shares.utilisation
            scalars[f"exposed_communication/{group}"] = shares.exposed_communication
            scalars[f"bubble/{group}"] = shares.bubble
        for name, value in scalars.items():
            writer.add_scalar(name, value, result.step + 1)

    def evaluation(self, result: EvalResult) -> None:
        """Log an evaluation."""
        self._opened(result.step + 1).add_scalar("loss/held_out", result.loss, result.step + 1)

    def _opened(self, first_step: int) -> "SummaryWriter":
        if self._writer is None:
            # takes seconds to load, for those who want it
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=first_step)
        return self._writer

    def close(self) -> None:
        """Write what waits and close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
