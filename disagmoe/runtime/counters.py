"""What a worker counts during one step; summed over all workers by the world reduction."""

from dataclasses import dataclass

import torch

from disagmoe.runtime.context import Context


@dataclass(slots=True)
class StepCounters:
    """This worker's share of the step's losses, and of the choices that fell on each expert."""

    loss: torch.Tensor
    balance: torch.Tensor
    z: torch.Tensor
    choices_LE: torch.Tensor
    """fp64 [layers, experts]: exact up to 2^53 choices."""

    @classmethod
    def zero(cls, context: Context) -> "StepCounters":
        """Nothing counted yet."""
        model, device = context.config.model, context.device
        loss, balance, z = torch.zeros(3, dtype=torch.float64, device=device).unbind()
        return cls(
            loss,
            balance,
            z,
            torch.zeros(model.layers, model.experts, dtype=torch.float64, device=device),
        )

    def add_choices(self, layer: int, counts_E: torch.Tensor) -> None:
        """Count the choices of one micro-batch at `layer`."""
        self.choices_LE[layer] += counts_E
