"""What a worker is compared by."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from disagmoe.runtime.report import StepReport
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.runtime.update import TrainingState


@dataclass(frozen=True, slots=True)
class Observation:
    """What one worker did in one step."""

    report: StepReport
    grads: dict[str, torch.Tensor]
    values: dict[str, torch.Tensor]
    """Parameters after the update, by global name."""
    balances: dict[str, torch.Tensor]
    """Balance biases after the update."""
    choices: dict[tuple[int, int], torch.Tensor]


def observe(runtime: WorkerRuntime, states: Sequence[TrainingState | None]) -> list[Observation]:
    """Do one step for each of `states`, taking each over first that is not None."""
    recording = runtime.record()
    seen = []
    for step, state in enumerate(states):
        if state is not None:
            runtime.update.load(state)
        report = runtime.run_step(step)
        values = runtime.parameters.global_values()
        seen.append(
            Observation(
                report,
                {name: grad.cpu() for name, grad in recording.grads.items()},
                {name: value.clone().cpu() for name, value in values.items()},
                {name: bias.clone().cpu() for name, bias in runtime.parameters.balances.items()},
                {place: chosen.cpu() for place, chosen in recording.choices.items()},
            )
        )
    return seen
