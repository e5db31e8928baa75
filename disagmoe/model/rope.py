"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

Letters: B sequences, S positions, H heads, C head_dim.
"""

from dataclasses import dataclass

import torch

from disagmoe.config.model import ModelConfig
from disagmoe.model.precision import wide


@dataclass(frozen=True, slots=True)
class Rope:
    """Cosines and sines of all positions up to a length, computed once per run."""

    cos_SC: torch.Tensor
    sin_SC: torch.Tensor

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        length: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> "Rope":
        """Return the tables for positions 0 to length-1.

        The angle of pair i at position s is s * theta^(-2i / head_dim), computed in fp32 (fp64 for
        fp64) and cast to `dtype` after the cosine, as Transformers does.
        """
        exact = wide(dtype)
        pairs = torch.arange(0, config.head_dim, 2, dtype=exact, device=device)
        frequencies = 1.0 / (config.rope_theta ** (pairs / config.head_dim))
        angles = torch.outer(torch.arange(length, dtype=exact, device=device), frequencies)
        angles_SC = torch.cat((angles, angles), dim=-1)
        return cls(angles_SC.cos().to(dtype), angles_SC.sin().to(dtype))

    def rotate(self, x_BHSC: torch.Tensor) -> torch.Tensor:
        """Turn the pairs (i, i + C/2) of every head: the rotate-half convention of Transformers."""
        length, half = x_BHSC.shape[2], x_BHSC.shape[3] // 2
        turned = torch.cat((-x_BHSC[..., half:], x_BHSC[..., :half]), dim=-1)
        return x_BHSC * self.cos_SC[:length] + turned * self.sin_SC[:length]
