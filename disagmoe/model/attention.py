"""Causal attention: grouped-query, and multi-head latent.

Letters: B sequences, S positions, D hidden, H heads, C head width; Y rank of keys and values.
"""

import torch
import torch.nn.functional as F

from disagmoe.config.model import ModelConfig
from disagmoe.model.mixing import Documents, mix
from disagmoe.model.norm import rms_norm
from disagmoe.model.params import (
    AttentionParams,
    CompressedQueryParams,
    GroupedQueryParams,
    LatentParams,
)
from disagmoe.model.rope import Rope, yarn_scale

LATENT_NORM_EPS = 1e-6
"""Of the norms inside latent attention: a constant in DeepSeek's and Transformers' models."""


def attention(
    params: AttentionParams,
    n_BSD: torch.Tensor,
    config: ModelConfig,
    rope: Rope,
    *,
    window: int = 0,
    documents: Documents | None = None,
) -> torch.Tensor:
    """Return attention over each sequence alone, from normalised input; same shape and type.

    `window` > 0 limits how many keys a query sees. With `documents` each document of a sequence is
    alone, and its positions start at 0. Zero sequences are legal.
    """
    if documents is not None:
        positions_BS = documents.positions(n_BSD.device).view(n_BSD.shape[:2])
        rope = rope.at(positions_BS[:, None])
    if isinstance(params.mixing, LatentParams):
        return _latent(params.mixing, n_BSD, config, rope, documents)
    return _grouped_query(params.mixing, n_BSD, config, rope, window, documents)


def _grouped_query(
    params: GroupedQueryParams,
    n_BSD: torch.Tensor,
    config: ModelConfig,
    rope: Rope,
    window: int,
    documents: Documents | None,
) -> torch.Tensor:
    """Query head i attends with key/value head i // (heads / kv_heads). Queries and keys may be
    normalised before the rotation: every head over its own width (Qwen3), or all of them together
    (OLMoE)."""
    q = _normed(F.linear(n_BSD, params.q_QD, params.q_bias_Q), params.q_norm, config)
    k = _normed(F.linear(n_BSD, params.k_WD, params.k_bias_W), params.k_norm, config)
    v_BHSC = _heads(F.linear(n_BSD, params.v_WD, params.v_bias_W), config.head_dim)
    mixed_BHSC = mix(
        rope.rotate(_heads(q, config.head_dim)),
        rope.rotate(_heads(k, config.head_dim)),
        v_BHSC,
        scale=config.head_dim**-0.5,
        window=window,
        sinks_H=params.sinks_H,
        documents=documents,
    )
    return F.linear(_joined(mixed_BHSC), params.o_DQ, params.o_bias_D)


def _normed(x_BSQ: torch.Tensor, weight: torch.Tensor | None, config: ModelConfig) -> torch.Tensor:
    if weight is None:
        return x_BSQ
    split = x_BSQ.unflatten(-1, (-1, weight.shape[0]))
    return rms_norm(split, weight, config.norm_eps).flatten(-2)


def _latent(
    params: LatentParams,
    n_BSD: torch.Tensor,
    config: ModelConfig,
    rope: Rope,
    documents: Documents | None,
) -> torch.Tensor:
    """DeepSeek-V2 (arXiv:2405.04434) section 2.1: keys and values come out of a narrow layer, and
    one rotated key part is shared by all heads."""
    nope, rotated = config.qk_nope_head_dim, config.qk_rope_head_dim
    q_BHSC = _heads(_latent_queries(params.q, n_BSD), nope + rotated)
    q_nope, q_rot = q_BHSC.split((nope, rotated), dim=-1)
    narrow, k_rot = F.linear(n_BSD, params.kv_down_YRD).split(
        (config.kv_lora_rank, rotated), dim=-1
    )
    narrow_BSY = rms_norm(narrow, params.kv_norm_Y, LATENT_NORM_EPS)
    wide = _heads(F.linear(narrow_BSY, params.kv_up_UY), nope + config.head_dim)
    k_nope, v_BHSC = wide.split((nope, config.head_dim), dim=-1)
    k_rot = rope.rotate(k_rot[:, None]).expand(-1, config.heads, -1, -1)
    scale = (nope + rotated) ** -0.5
    if config.yarn.factor > 1 and config.yarn.mscale_all_dim:
        scale *= yarn_scale(config.yarn, config.yarn.mscale_all_dim) ** 2
    mixed_BHSC = mix(
        torch.cat((q_nope, rope.rotate(q_rot)), dim=-1),
        torch.cat((k_nope, k_rot), dim=-1),
        v_BHSC,
        scale=scale,
        documents=documents,
    )
    return F.linear(_joined(mixed_BHSC), params.o_DQ)


def _latent_queries(
    params: torch.Tensor | CompressedQueryParams, n_BSD: torch.Tensor
) -> torch.Tensor:
    if isinstance(params, torch.Tensor):
        return F.linear(n_BSD, params)
    narrow = rms_norm(F.linear(n_BSD, params.down_ZD), params.norm_Z, LATENT_NORM_EPS)
    return F.linear(narrow, params.up_QZ)


def _heads(x_BSQ: torch.Tensor, width: int) -> torch.Tensor:
    """Return [B, H, S, width]."""
    return x_BSQ.view(*x_BSQ.shape[:2], x_BSQ.shape[2] // width, width).transpose(1, 2)


def _joined(x_BHSC: torch.Tensor) -> torch.Tensor:
    return x_BHSC.transpose(1, 2).flatten(2)
