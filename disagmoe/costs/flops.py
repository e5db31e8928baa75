"""FLOPs per token, by part of a layer and direction; a multiply-add counts 2.

Formulas for one token and layer, h hidden, q heads, E experts, k of them visited, i inner width,
S length: projections 2 x their weights; scores 2 q (d_qk + d_v) x keys seen; router 2 h E; routed
experts 6 h i k; shared and dense SwiGLU 6 h i; LM head 2 h V.

A backward of matrix products costs twice the forward, once for the inputs and once for the weights.
Flash attention computes the scores again: 5 products instead of 2 (Dao 2022, arXiv:2205.14135
section 3.1), which is the hardware's work; model FLOPs count 2 forwards, as everybody does.
"""

from disagmoe.config.model import ModelConfig
from disagmoe.costs.parameters import attention_matrices


def projections(model: ModelConfig) -> int:
    """Forward FLOPs of the projections of queries, keys, values and output."""
    return 2 * attention_matrices(model)


def mean_keys(length: int, window: int = 0) -> float:
    """Keys that a query of a causal sequence sees on average, itself included; at most `window`
    (0: all). The query at place t sees min(t, window)."""
    if not 0 < window < length:
        return (length + 1) / 2
    return window - window * (window - 1) / (2 * length)


def score_unit(model: ModelConfig) -> int:
    """FLOPs of a query and a key over all heads: their product, and that with the value."""
    return 2 * model.heads * (model.qk_head_dim + model.head_dim)


def scores(model: ModelConfig, length: int, window: int = 0) -> float:
    """Forward FLOPs of a layer's attention scores, causal, by sequences of `length` tokens."""
    return score_unit(model) * mean_keys(length, window)


def flash_backward_ratio(model: ModelConfig) -> float:
    """Hardware FLOPs of the scores' backward over their forward: (3 d_qk + 2 d_v) / (d_qk + d_v),
    2.5 for equal widths and 2.6 for DeepSeek's."""
    qk, v = model.qk_head_dim, model.head_dim
    return (3 * qk + 2 * v) / (qk + v)


def router(model: ModelConfig) -> int:
    """Forward FLOPs of the router."""
    return 2 * model.hidden * model.experts


def swiglu(model: ModelConfig, width: int) -> int:
    """Forward FLOPs of a SwiGLU of that inner width."""
    return 6 * model.hidden * width


def routed(model: ModelConfig) -> int:
    """Forward FLOPs of the experts that a token visits."""
    return model.top_k * swiglu(model, model.expert_width)


def head(model: ModelConfig) -> int:
    """Forward FLOPs of the LM head."""
    return 2 * model.hidden * model.vocab_size


def attention_side(model: ModelConfig, length: int, *, shared: bool = True) -> float:
    """Forward FLOPs of what attention workers do in one layer with experts, averaged over layers
    with and without a window; `shared` says whether they have the shared experts."""
    layers = range(model.dense_layers, model.layers)
    mean_scores = sum(scores(model, length, model.window_of(layer)) for layer in layers)
    dense = swiglu(model, model.shared_width) if shared else 0
    return projections(model) + mean_scores / len(layers) + router(model) + dense


def model_flops(model: ModelConfig, length: int, *, causal: bool = True) -> float:
    """FLOPs of a training step per token: three forwards of the whole model, LM head included,
    embedding not. MFU is measured by it. Without `causal` every query is taken to see all keys (at
    most its window), as older counts have it.
    """
    unit = score_unit(model)
    forward = float(head(model))
    for layer in range(model.layers):
        window = model.window_of(layer)
        seen = mean_keys(length, window) if causal else min(length, window or length)
        forward += projections(model) + unit * seen
        if layer < model.dense_layers:
            forward += swiglu(model, model.dense_width)
        else:
            forward += router(model) + routed(model) + swiglu(model, model.shared_width)
    return 3 * forward
