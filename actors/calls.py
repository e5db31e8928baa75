"""The calls of a run in order, and how long each may take."""

from collections.abc import Iterator
from dataclasses import dataclass

from disagmoe.actors.messages import Call
from disagmoe.config.cluster import FIRST_STEP_FACTOR
from disagmoe.config.run import RunConfig
from disagmoe.config.train import TrainConfig


def calls(train: TrainConfig, steps: range) -> Iterator[Call]:
    """The calls of `steps`: every one once, evaluations in between and at the end of the run."""
    for step in steps:
        yield Call("step", step)
        if evaluates_after(step, train):
            yield Call("eval", step)


def evaluates_after(step: int, train: TrainConfig) -> bool:
    """Whether an evaluation follows `step` (from 0)."""
    done = step + 1
    return train.eval.every > 0 and (done % train.eval.every == 0 or done == train.steps)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Longest time of each call, counted from the end of the call before, or of a save's step."""

    start_s: float
    step_s: float
    checkpoint_s: float
    first_step: int = 0
    """Number of the first step of these workers."""

    @classmethod
    def of(cls, config: RunConfig, first_step: int = 0) -> "Deadlines":
        """The deadlines that `config` asks for."""
        cluster = config.cluster
        return cls(
            cluster.start_timeout_s, cluster.step_timeout_s, config.checkpoint.timeout_s, first_step
        )

    def limit_s(self, call: Call) -> float:
        """Longest time of `call`."""
        match call.kind:
            case "locate" | "setup":
                return self.start_s
            case "step":
                is_first = call.step == self.first_step
                return self.step_s * (FIRST_STEP_FACTOR if is_first else 1.0)
            case "eval" | "adopt":
                return self.step_s
            case "restore" | "saved":
                return self.checkpoint_s
