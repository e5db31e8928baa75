"""The attention side of the cut: all of a block except its experts, and both ends of the network.

A layer is `attention_half`, then the experts (experts.py) on the rows that dispatch.py picks, then
`combine` (dispatch.py), which adds what comes back to the residual.

Letters: B sequences, S positions, T = B * S tokens, D hidden, V vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from disagmoe.config.model import ModelConfig
from disagmoe.model.attention import attention
from disagmoe.model.losses import StepTotals, cross_entropy
from disagmoe.model.norm import rms_norm
from disagmoe.model.params import AttentionParams, HeadParams
from disagmoe.model.rope import Rope
from disagmoe.model.router import Routing, draw_experts, route


@dataclass(frozen=True, slots=True)
class AttentionOut:
    """What one layer's attention side hands on. All three depend on the input and the parameters.

    Incoming gradients: of `x_TD` from the residual, of `n_TD` from the rows sent to experts, and of
    `routing.gate_TK` from the gates sent to experts; losses add those of the router.
    """

    x_TD: torch.Tensor
    """Residual stream after attention."""
    n_TD: torch.Tensor
    """Normalised input of router and experts."""
    routing: Routing


def embed(embed_VD: torch.Tensor, tokens_BS: torch.Tensor) -> torch.Tensor:
    """Return the embeddings h_BSD of int64 token ids."""
    return F.embedding(tokens_BS, embed_VD)


def attention_half(
    params: AttentionParams, h_BSD: torch.Tensor, config: ModelConfig, rope: Rope, *, layer: int
) -> AttentionOut:
    """Return x = h + attention(norm(h)), n = norm(x) and the routing of n."""
    normed_BSD = rms_norm(h_BSD, params.attn_norm_D, config.norm_eps)
    x_BSD = h_BSD + attention(params, normed_BSD, config, rope)
    x_TD = x_BSD.flatten(0, 1)
    n_TD = rms_norm(x_TD, params.moe_norm_D, config.norm_eps)
    routing = route(
        params.router_ED,
        n_TD,
        top_k=config.top_k,
        renormalise=config.norm_topk_prob,
        expert_TK=_forced(h_BSD, config, layer),
    )
    return AttentionOut(x_TD, n_TD, routing)


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
