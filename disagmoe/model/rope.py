"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), with YaRN (arXiv:2309.00071).

Letters: B sequences, S positions, H heads, C rotated width of a head.
"""

import math
from dataclasses import dataclass

import torch

from disagmoe.config.families import traits
from disagmoe.config.model import ModelConfig, YarnConfig
from disagmoe.model.precision import wide


@dataclass(frozen=True, slots=True)
class Rope:
    """Cosines and sines of all positions up to a length, computed once per run."""

    cos_SC: torch.Tensor
    sin_SC: torch.Tensor
    interleaved: bool = False
    """Whether pairs are neighbours (2i, 2i + 1) instead of (i, i + C/2)."""

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        length: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> "Rope":
        """Return the tables for positions 0 to length-1.

        The angle of pair i at position s is s * theta^(-2i / C), stretched by YaRN where asked for,
        computed in fp32 (fp64 for fp64) and cast to `dtype` after the cosine, as Transformers does.
        """
        exact = wide(dtype)
        width = config.qk_rope_head_dim if config.kv_lora_rank else config.head_dim
        pairs = torch.arange(0, width, 2, dtype=exact, device=device)
        frequencies = 1.0 / (config.rope_theta ** (pairs / width))
        size = 1.0
        if config.yarn.factor > 1:
            frequencies = _stretched(frequencies, config.yarn, config.rope_theta)
            size = _size(config.yarn)
        angles = torch.outer(torch.arange(length, dtype=exact, device=device), frequencies)
        angles_SC = torch.cat((angles, angles), dim=-1)
        cos_SC, sin_SC = angles_SC.cos() * size, angles_SC.sin() * size
        return cls(cos_SC.to(dtype), sin_SC.to(dtype), traits(config).interleaved_rope)

    def at(self, positions_S: torch.Tensor) -> "Rope":
        """Return the tables of tokens that stand at `positions_S`, of any shape that heads of
        sequences broadcast to."""
        return Rope(self.cos_SC[positions_S], self.sin_SC[positions_S], self.interleaved)

    def rotate(self, x_BHSC: torch.Tensor) -> torch.Tensor:
        """Turn all pairs of every head, in the rotate-half convention of Transformers. Neighbours
        come out as (i, i + C/2), in queries and keys alike, which no product of them shows."""
        length, half = x_BHSC.shape[2], x_BHSC.shape[3] // 2
        if self.interleaved:
            x_BHSC = torch.cat((x_BHSC[..., 0::2], x_BHSC[..., 1::2]), dim=-1)
        turned = torch.cat((-x_BHSC[..., half:], x_BHSC[..., :half]), dim=-1)
        return x_BHSC * self.cos_SC[..., :length, :] + turned * self.sin_SC[..., :length, :]


def _stretched(frequencies: torch.Tensor, yarn: YarnConfig, theta: float) -> torch.Tensor:
    """YaRN section 3.2, equations 17 to 23 ("NTK by parts")."""
    width = 2 * len(frequencies)

    def dimension(turns: float) -> float:
        """Pair that makes so many turns over the original length."""
        span = yarn.original_length / (turns * 2 * math.pi)
        return width * math.log(span) / (2 * math.log(theta))

    low, high = dimension(yarn.beta_fast), dimension(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001  # as everywhere: a ramp needs a length
    place = torch.arange(len(frequencies), dtype=frequencies.dtype, device=frequencies.device)
    slowed = ((place - low) / (high - low)).clamp(0, 1)
    return frequencies / yarn.factor * slowed + frequencies * (1 - slowed)


def _size(yarn: YarnConfig) -> float:
    """What cosines and sines are multiplied by."""
    if yarn.mscale and yarn.mscale_all_dim:
        return yarn_scale(yarn, yarn.mscale) / yarn_scale(yarn, yarn.mscale_all_dim)
    return yarn_scale(yarn, 1.0)


def yarn_scale(yarn: YarnConfig, weight: float) -> float:
    """Return 0.1 * weight * ln(factor) + 1 (YaRN equation 24, with DeepSeek-V2's weight)."""
    return 0.1 * weight * math.log(yarn.factor) + 1.0
