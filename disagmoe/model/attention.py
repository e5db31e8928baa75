"""Causal grouped-query attention.

Letters: B sequences, S positions, D hidden, H heads, C head_dim.
"""

import torch
import torch.nn.functional as F

from disagmoe.config.model import ModelConfig
from disagmoe.model.norm import rms_norm
from disagmoe.model.params import AttentionParams
from disagmoe.model.rope import Rope


def attention(
    params: AttentionParams, n_BSD: torch.Tensor, config: ModelConfig, rope: Rope
) -> torch.Tensor:
    """Return attention over each sequence alone, from normalised input; same shape and type.

    Query head i attends with key/value head i // (heads / kv_heads). With q/k norm (Qwen3) every
    head is normalised over its own width before the rotation. Zero sequences are legal.
    """
    batch, length, _ = n_BSD.shape

    def heads(weight: torch.Tensor, count: int) -> torch.Tensor:
        return F.linear(n_BSD, weight).view(batch, length, count, config.head_dim)

    q_BSHC = heads(params.q_QD, config.heads)
    k_BSHC = heads(params.k_WD, config.kv_heads)
    v_BSHC = heads(params.v_WD, config.kv_heads)
    if params.q_norm_C is not None and params.k_norm_C is not None:
        q_BSHC = rms_norm(q_BSHC, params.q_norm_C, config.norm_eps)
        k_BSHC = rms_norm(k_BSHC, params.k_norm_C, config.norm_eps)
    mixed_BHSC = F.scaled_dot_product_attention(
        rope.rotate(q_BSHC.transpose(1, 2)),
        rope.rotate(k_BSHC.transpose(1, 2)),
        v_BSHC.transpose(1, 2),
        is_causal=True,
        enable_gqa=config.heads != config.kv_heads,
    )
    mixed_BSQ = mixed_BHSC.transpose(1, 2).reshape(batch, length, config.heads * config.head_dim)
    return F.linear(mixed_BSQ, params.o_DQ)
