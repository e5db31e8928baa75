"""Root-mean-square normalisation."""

import torch

from disagmoe.model.precision import wide


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension, in the type of `x`.

    Zhang and Sennrich 2019 (arXiv:1910.07467). As in Transformers (MixtralRMSNorm) the normalised
    value is computed in fp32 (fp64 for fp64), cast to the type of `x`, then multiplied by `weight`.
    """
    x_wide = x.to(wide(x.dtype))
    scale = torch.rsqrt(x_wide.square().mean(-1, keepdim=True) + eps)
    return weight * (x_wide * scale).to(x.dtype)
