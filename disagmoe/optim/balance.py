"""Balancing experts without a loss: a bias that follows how often each was chosen."""

from collections.abc import Sequence

import torch


def move_balance(bias_E: torch.Tensor, choices_E: Sequence[int], rate: float) -> None:
    """Add `rate` to the bias of each expert that was chosen less than the mean, and subtract it
    where it was chosen more often (Wang et al. 2024, arXiv:2408.15664, algorithm 1).

    `choices_E` are those of the whole step, over all workers and micro-batches. `bias_E` is fp32 or
    wider: in bf16 steps of 1e-3 would stop to add up at 0.5.
    """
    choices = torch.tensor(choices_E, dtype=torch.float64, device=bias_E.device)
    bias_E.add_(torch.sign(choices.mean() - choices).to(bias_E.dtype), alpha=rate)
