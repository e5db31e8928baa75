"""What a step computed, kept for comparison with the reference."""

from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class Recording:
    """Filled by a worker whose runtime has one; costs a copy of all gradients per step."""

    grads: dict[str, torch.Tensor] = field(default_factory=dict)
    """Summed gradients by global name, before clipping."""
    choices: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)
    """Experts chosen [T, K] by layer and micro-batch, for this worker's tokens."""
