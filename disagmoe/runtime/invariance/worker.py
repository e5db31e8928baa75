"""One worker under observation: the runtime of a layout, and what it is compared by."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from disagmoe.config.run import RunConfig
from disagmoe.data.batch import Batch
from disagmoe.data.source import FixedSource
from disagmoe.runtime.context import Context
from disagmoe.runtime.report import StepReport
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.runtime.update import TrainingState
from disagmoe.schedule.ir import ProgramSet
from disagmoe.schedule.layout import Side, Worker
from disagmoe.transport.base import Transport


@dataclass(frozen=True, slots=True)
class Observation:
    """What one worker did in one step."""

    report: StepReport
    grads: dict[str, torch.Tensor]
    values: dict[str, torch.Tensor]
    """Parameters after the update, by global name."""
    choices: dict[tuple[int, int], torch.Tensor]


class ObservedWorker:
    """A worker of a resolved config that is fed by hand."""

    def __init__(
        self,
        config: RunConfig,
        programs: ProgramSet,
        worker: Worker,
        transport: Transport,
        batches: list[Batch],
    ) -> None:
        context = Context(config, programs.spec, worker, torch.device("cpu"))
        attention = worker.group.side is not Side.EXPERT
        self.runtime = WorkerRuntime(
            context,
            programs,
            None,
            transport,
            FixedSource(batches) if attention else None,
        )
        self._recording = self.runtime.record()

    def close(self) -> None:
        """Leave all channels and end the threads behind them."""
        self.runtime.close()

    def run(self, states: Sequence[TrainingState | None]) -> list[Observation]:
        """Do one step for each of `states`, taking each over first that is not None."""
        return [self._step(step, state) for step, state in enumerate(states)]

    def _step(self, step: int, state: TrainingState | None) -> Observation:
        if state is not None:
            self.runtime.update.load(state)
        report = self.runtime.run_step(step)
        values = self.runtime.parameters.global_values()
        return Observation(
            report,
            self._recording.grads,
            {name: value.clone() for name, value in values.items()},
            dict(self._recording.choices),
        )
