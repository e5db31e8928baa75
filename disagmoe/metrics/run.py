"""What the driver, the process of the script, tells of the run as a whole."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from disagmoe.config.run import RunConfig
from disagmoe.costs.flops import model_flops
from disagmoe.metrics import catalogue
from disagmoe.metrics.board import Board
from disagmoe.metrics.discovery import DRIVER
from disagmoe.metrics.peaks import peak_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """One step as the driver knows it; see StepResult for what each is."""

    step: int
    loss: float
    balance: float
    z: float
    grad_norm: float
    lr: float
    tokens: int
    skipped: bool
    step_s: float
    expert_load: Sequence[float]
    """By layer: choices on the busiest expert over the mean."""
    expert_variation: Sequence[float]
    """By layer: coefficient of variation."""
    dead_experts: Sequence[int]
    """By layer: experts without a choice."""


class RunMetrics:
    """The metrics of a run; restarts of its workers do not end them."""

    def __init__(
        self, config: RunConfig, causes: Collection[str], now: Callable[[], float]
    ) -> None:
        """`causes` are those that a restart can have; `now` is the system clock, in seconds since
        its epoch."""
        self.board = board = Board({"role": DRIVER, "group": "0", "rank": "0", "ring": "0"})
        self._now = now
        self._config = config
        self._failed_s: float | None = None
        self._flops_per_token = model_flops(config.model, config.train.sequence_length)
        self._digits = len(str(config.model.layers - 1))
        began_s = now()
        board.set(catalogue.TARGET_STEPS, config.train.steps)
        board.set(catalogue.PROGRESS, 0)
        board.set(catalogue.LAST_STEP, began_s)
        board.set(catalogue.LAST_CHECKPOINT, began_s)
        for counter in (
            catalogue.STEPS,
            catalogue.SKIPPED_STEPS,
            catalogue.STEP_SECONDS,
            catalogue.TOKENS,
            catalogue.MODEL_FLOPS,
            catalogue.CHECKPOINTS,
            catalogue.CHECKPOINT_SECONDS,
            catalogue.RESTART_SECONDS,
            catalogue.LOST_STEPS,
        ):
            board.add(counter, 0)
        for cause in causes:
            board.add(catalogue.RESTARTS, 0, cause=cause)
        board.set(catalogue.RESTARTING, 0)
        if config.metrics.link_bytes_per_s:
            board.set(catalogue.LINK_BYTES, config.metrics.link_bytes_per_s)

    def build(self, version: str, python: str, torch: str) -> None:
        """Tell which versions run."""
        self.board.set(catalogue.BUILD_INFO, 1, version=version, python=python, torch=torch)

    def placed(self, devices: Mapping[str, str]) -> None:
        """Tell what the workers could do at best; `devices` has the name of each one's device."""
        for side, peak in peak_flops(self._config, devices).items():
            self.board.set(catalogue.PEAK_FLOPS, peak, side=side)

    def resumed(self, step: int) -> None:
        """Tell how many steps are done in the checkpoint that the workers have loaded."""
        self.board.set(catalogue.PROGRESS, step)

    def step(self, figures: StepFigures) -> None:
        """Count a step."""
        board, now_s = self.board, self._now()
        with board.changes():
            if self._failed_s is not None:
                lost_s = now_s - figures.step_s - self._failed_s
                board.add(catalogue.RESTART_SECONDS, max(lost_s, 0.0))
                board.set(catalogue.RESTARTING, 0)
                self._failed_s = None
            board.add(catalogue.STEPS, 1)
            board.set(catalogue.PROGRESS, figures.step + 1)
            board.add(catalogue.SKIPPED_STEPS, figures.skipped)
            board.add(catalogue.STEP_SECONDS, figures.step_s)
            board.add(catalogue.TOKENS, figures.tokens)
            board.add(catalogue.MODEL_FLOPS, figures.tokens * self._flops_per_token)
            board.set(catalogue.LAST_STEP, now_s)
            board.set(catalogue.LOSS, figures.loss)
            board.set(catalogue.BALANCE_LOSS, figures.balance)
            board.set(catalogue.Z_LOSS, figures.z)
            board.set(catalogue.GRAD_NORM, figures.grad_norm)
            board.set(catalogue.LEARNING_RATE, figures.lr)
            for metric, values in (
                (catalogue.EXPERT_LOAD, figures.expert_load),
                (catalogue.EXPERT_VARIATION, figures.expert_variation),
                (catalogue.DEAD_EXPERTS, figures.dead_experts),
            ):
                for layer, value in enumerate(values, self._config.model.dense_layers):
                    # with zeros in front text sorts as numbers do
                    board.set(metric, value, layer=f"{layer:0{self._digits}d}")

    def evaluation(self, loss: float) -> None:
        """Tell the loss on held-out data."""
        self.board.set(catalogue.EVAL_LOSS, loss)

    def restarting(self, cause: str, step: int, steps_lost: int) -> None:
        """Count a restart of the workers from a checkpoint with `step` steps; `cause` is one of
        those given at the beginning. It is over with the next step."""
        board = self.board
        with board.changes():
            board.add(catalogue.RESTARTS, 1, cause=cause)
            board.add(catalogue.LOST_STEPS, steps_lost)
            board.set(catalogue.PROGRESS, step)
            board.set(catalogue.RESTARTING, 1)
        if self._failed_s is None:  # else workers have failed again before their first step
            self._failed_s = self._now()

    def checkpoint_durable(self, decided_at_s: float) -> None:
        """Count a checkpoint that has become durable just now and was decided on at `decided_at_s`,
        in seconds since the epoch of the system clock."""
        with self.board.changes():
            self.board.add(catalogue.CHECKPOINTS, 1)
            self.board.add(catalogue.CHECKPOINT_SECONDS, max(self._now() - decided_at_s, 0.0))
            self.board.set(catalogue.LAST_CHECKPOINT, decided_at_s)
