"""The attention side of the cut: all of a block except its experts, and both ends of the network.

A layer is `attention_half`, then the experts (experts.py) on the rows that dispatch.py picks, then
`combine` (dispatch.py), which adds what comes back to the residual.

Letters: B sequences, S positions, T = B * S tokens, D hidden, F width of a dense SwiGLU, V
vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from disagmoe.config.model import ModelConfig
from disagmoe.model.attention import attention
from disagmoe.model.losses import StepTotals, cross_entropy
from disagmoe.model.mixing import Documents
from disagmoe.model.norm import rms_norm
from disagmoe.model.params import AttentionParams, HeadParams, SwigluParams
from disagmoe.model.rope import Rope
from disagmoe.model.router import Routing, Rule, draw_experts, route


@dataclass(frozen=True, slots=True)
class AttentionOut:
    """What one layer's attention side hands on. All three depend on the input and the parameters.

    Incoming gradients: of `x_TD` from the residual, of `n_TD` from the rows sent to experts, and of
    `routing.gate_TK` from the gates sent to experts; losses add those of the router.
    """

    x_TD: torch.Tensor
    """Residual stream after attention, and after shared experts where they are on this side."""
    n_TD: torch.Tensor
    """Normalised input of router and experts."""
    routing: Routing


def embed(embed_VD: torch.Tensor, tokens_BS: torch.Tensor) -> torch.Tensor:
    """Return the embeddings h_BSD of int64 token ids."""
    return F.embedding(tokens_BS, embed_VD)


def swiglu_block(params: SwigluParams, n_TD: torch.Tensor) -> torch.Tensor:
    """Return a dense SwiGLU of `n_TD`, behind its gate where it has one."""
    inner_TF = F.silu(F.linear(n_TD, params.gate_FD)) * F.linear(n_TD, params.up_FD)
    out_TD = F.linear(inner_TF, params.down_DF)
    if params.switch_1D is None:
        return out_TD
    return torch.sigmoid(F.linear(n_TD, params.switch_1D)) * out_TD


def dense_block(
    params: AttentionParams,
    h_BSD: torch.Tensor,
    config: ModelConfig,
    rope: Rope,
    *,
    layer: int,
    documents: Documents | None = None,
) -> torch.Tensor:
    """Return the output [B, S, D] of a layer without experts."""
    assert params.swiglu is not None, "a dense layer"
    x_BSD = _attended(params, h_BSD, config, rope, layer, documents)
    return x_BSD + swiglu_block(params.swiglu, rms_norm(x_BSD, params.moe_norm_D, config.norm_eps))


def attention_half(
    params: AttentionParams,
    h_BSD: torch.Tensor,
    config: ModelConfig,
    rope: Rope,
    *,
    layer: int,
    documents: Documents | None = None,
    expert_TK: torch.Tensor | None = None,
) -> AttentionOut:
    """Return x = h + attention(norm(h)), n = norm(x) and the routing of n; to x is added what
    shared experts in `params` give. `expert_TK` repeats decisions that have been taken before."""
    assert params.router is not None, "a layer with experts"
    x_BSD = _attended(params, h_BSD, config, rope, layer, documents)
    x_TD = x_BSD.flatten(0, 1)
    n_TD = rms_norm(x_TD, params.moe_norm_D, config.norm_eps)
    if expert_TK is None:
        expert_TK = _forced(h_BSD, config, layer)
    routing = route(params.router, n_TD, Rule.of(config), expert_TK=expert_TK)
    if params.swiglu is not None:
        x_TD = x_TD + swiglu_block(params.swiglu, n_TD)
    return AttentionOut(x_TD, n_TD, routing)


def _attended(
    params: AttentionParams,
    h_BSD: torch.Tensor,
    config: ModelConfig,
    rope: Rope,
    layer: int,
    documents: Documents | None,
) -> torch.Tensor:
    normed_BSD = rms_norm(h_BSD, params.attn_norm_D, config.norm_eps)
    window = config.window_of(layer)
    return h_BSD + attention(params, normed_BSD, config, rope, window=window, documents=documents)


def _forced(h_BSD: torch.Tensor, config: ModelConfig, layer: int) -> torch.Tensor | None:
    if not config.forced_balance:
        return None
    sequences, positions, _ = h_BSD.shape
    drawn_SK = draw_experts(
        positions, config.experts, config.top_k, layer=layer, device=h_BSD.device
    )
    return drawn_SK.repeat(sequences, 1)


def head_loss(
    params: HeadParams,
    h_TD: torch.Tensor,
    targets_T: torch.Tensor,
    config: ModelConfig,
    totals: StepTotals,
    *,
    chunk_tokens: int = 0,
) -> torch.Tensor:
    """Return these tokens' share of the step's cross-entropy; see losses.cross_entropy."""
    n_TD = rms_norm(h_TD, params.final_norm_D, config.norm_eps)
    return cross_entropy(n_TD, params.head_VD, targets_T, totals, chunk_tokens=chunk_tokens)


def head_logits(params: HeadParams, h_TD: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Return the logits [T, V] in the type of `h_TD`."""
    return F.linear(rms_norm(h_TD, params.final_norm_D, config.norm_eps), params.head_VD)
