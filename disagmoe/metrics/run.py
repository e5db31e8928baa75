"""What the driver, the process of the script, tells of the run as a whole."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from disagmoe.config.run import RunConfig
from disagmoe.metrics import catalogue
from disagmoe.metrics.board import Board
from disagmoe.metrics.discovery import DRIVER
from disagmoe.metrics.flops import model_flops, peak_flops


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
        ):
            board.add(counter, 0)
        for cause in causes:
            board.add(catalogue.RESTARTS, 0, cause=cause)
        for side, peak in peak_flops(config).items():
            board.set(catalogue.PEAK_FLOPS, peak, side=side)
        if config.metrics.link_bytes_per_s:
            board.set(catalogue.LINK_BYTES, config.metrics.link_bytes_per_s)

    def build(self, version: str, python: str, torch: str) -> None:
        """Tell which versions run."""
        self.board.set(catalogue.BUILD_INFO, 1, version=version, python=python, torch=torch)

    def step(self, figures: StepFigures) -> None:
        """Count a step."""
        board = self.board
        with board.changes():
            board.add(catalogue.STEPS, 1)
            board.set(catalogue.PROGRESS, figures.step + 1)
            board.add(catalogue.SKIPPED_STEPS, figures.skipped)
            board.add(catalogue.STEP_SECONDS, figures.step_s)
            board.add(catalogue.TOKENS, figures.tokens)
            board.add(catalogue.MODEL_FLOPS, figures.tokens * self._flops_per_token)
            board.set(catalogue.LAST_STEP, self._now())
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
                for layer, value in enumerate(values):
                    # with zeros in front text sorts as numbers do
                    board.set(metric, value, layer=f"{layer:0{self._digits}d}")

    def evaluation(self, loss: float) -> None:
        """Tell the loss on held-out data."""
        self.board.set(catalogue.EVAL_LOSS, loss)

    def restarted(self, cause: str) -> None:
        """Count a restart of the workers; `cause` is one of those given at the beginning."""
        self.board.add(catalogue.RESTARTS, 1, cause=cause)

    def checkpoint_durable(self, decided_at_s: float) -> None:
        """Count a checkpoint that has become durable just now and was decided on at `decided_at_s`,
        in seconds since the epoch of the system clock."""
        with self.board.changes():
            self.board.add(catalogue.CHECKPOINTS, 1)
            self.board.add(catalogue.CHECKPOINT_SECONDS, max(self._now() - decided_at_s, 0.0))
            self.board.set(catalogue.LAST_CHECKPOINT, decided_at_s)
