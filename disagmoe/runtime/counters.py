"""What a worker counts during one step; summed over all workers by the world reduction."""

from dataclasses import dataclass

import torch

from disagmoe.runtime.context import Context


@dataclass(slots=True)
class StepCounters:
    """This worker's share of the step's losses, and of the choices that fell on each expert.

    Losses are kept by layer (L) and micro-batch (M) and added up in that order at the end, so that
    their bits do not depend on the schedule. All are fp64.
    """

    loss_M: torch.Tensor
    balance_LM: torch.Tensor
    z_LM: torch.Tensor
    choices_LE: torch.Tensor
    """Exact up to 2^53 choices."""
    rows: dict[str, torch.Tensor]
    """By hop: rows that the routing decisions ask for."""

    @classmethod
    def zero(cls, context: Context, micro_batches: int) -> "StepCounters":
        """Nothing counted yet."""
        model = context.config.model

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=context.device)

        return cls(
            zeros(micro_batches),
            zeros(model.layers, micro_batches),
            zeros(model.layers, micro_batches),
            zeros(model.layers, model.experts),
            {hop: zeros() for hop in context.takers},
        )

    def add_choices(self, layer: int, counts_E: torch.Tensor) -> None:
        """Count the choices of one micro-batch at `layer`."""
        self.choices_LE[layer] += counts_E

    def add_rows(self, hop: str, count: torch.Tensor | int) -> None:
        """Count rows that the tokens of one micro-batch need on a hop."""
        self.rows[hop] += count

    def sums(self) -> list[float]:
        """Loss, balance and z of the whole step."""
        return [sum(part.flatten().tolist()) for part in (self.loss_M, self.balance_LM, self.z_LM)]
