"""How many parameters a model has, and where: counted from its settings, without building it.

Letters: h hidden, q query heads, g key/value heads, d head width, i inner width, E experts,
V vocabulary. The counts equal those of Transformers to the last one (a test builds its models).
"""

from dataclasses import dataclass
from enum import Enum, auto

from disagmoe.config.model import Family, ModelConfig


class QkNorm(Enum):
    """What a family normalises of queries and keys."""

    NONE = auto()
    HEADS = auto()
    """Each head, all with one weight vector."""
    WHOLE = auto()
    """All heads together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Small parameters that some families have."""

    qk_norm: QkNorm = QkNorm.NONE
    qkv_bias: bool = False
    output_bias: bool = False
    expert_bias: bool = False
    """Biases of router and experts."""
    sinks: bool = False
    """One logit per head that takes up attention."""
    shared_gate: bool = False
    """A gate in front of the shared experts."""


_TRAITS: dict[Family, Traits] = {
    "mixtral": Traits(),
    "qwen3_moe": Traits(qk_norm=QkNorm.HEADS),
    "olmoe": Traits(qk_norm=QkNorm.WHOLE),
    "qwen2_moe": Traits(qkv_bias=True, shared_gate=True),
    "glm4_moe": Traits(qkv_bias=True),
    "gpt_oss": Traits(qkv_bias=True, output_bias=True, expert_bias=True, sinks=True),
    "deepseek": Traits(),
    "deepseek_v2": Traits(),
    "deepseek_v3": Traits(),
}
"""From the modelling files of Transformers 5, by `model_type`."""


def normalises_qk(model: ModelConfig) -> bool:
    """Whether queries and keys are normalised."""
    return _TRAITS[model.family].qk_norm is not QkNorm.NONE


def attention_matrices(model: ModelConfig) -> int:
    """Weights of the projections of one attention layer: h d (q + 2 g) + q d h, or those of
    multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 section 2.1)."""
    h, heads = model.hidden, model.heads
    output = heads * model.head_dim * h
    if not model.kv_lora_rank:
        return h * model.head_dim * (heads + 2 * model.kv_heads) + output
    queries, rank = heads * model.qk_head_dim, model.q_lora_rank
    query = h * rank + rank * queries if rank else h * queries
    down = h * (model.kv_lora_rank + model.qk_rope_head_dim)
    up = model.kv_lora_rank * heads * (model.qk_nope_head_dim + model.head_dim)
    return query + down + up + output


def attention_parameters(model: ModelConfig) -> int:
    """All parameters of one attention layer without the norm before it."""
    traits, h, d = _TRAITS[model.family], model.hidden, model.head_dim
    count = attention_matrices(model) + model.q_lora_rank + model.kv_lora_rank  # and their norms
    match traits.qk_norm:
        case QkNorm.HEADS:
            count += 2 * d
        case QkNorm.WHOLE:
            count += d * (model.heads + model.kv_heads)
        case QkNorm.NONE:
            pass
    count += d * (model.heads + 2 * model.kv_heads) if traits.qkv_bias else 0
    count += h if traits.output_bias else 0
    return count + (model.heads if traits.sinks else 0)


def router_parameters(model: ModelConfig) -> int:
    """Parameters of one router."""
    return model.experts * (model.hidden + _TRAITS[model.family].expert_bias)


def expert_parameters(model: ModelConfig) -> int:
    """Parameters of one expert: 3 h i, and biases."""
    biased = _TRAITS[model.family].expert_bias
    return _swiglu(model, model.expert_width) + biased * (2 * model.expert_width + model.hidden)


def shared_parameters(model: ModelConfig) -> int:
    """Parameters of the shared experts of one layer, together."""
    if not model.shared_width:
        return 0
    return _swiglu(model, model.shared_width) + _TRAITS[model.family].shared_gate * model.hidden


def dense_parameters(model: ModelConfig) -> int:
    """Parameters of the feed-forward part of one dense layer."""
    return _swiglu(model, model.dense_width)


def _swiglu(model: ModelConfig, width: int) -> int:
    return 3 * model.hidden * width


def attention_side_parameters(model: ModelConfig) -> int:
    """Parameters of one layer with experts that attention workers hold: both norms, attention,
    router, shared experts."""
    own = attention_parameters(model) + router_parameters(model) + shared_parameters(model)
    return own + 2 * model.hidden


def dense_layer_parameters(model: ModelConfig) -> int:
    """Parameters of one dense layer, all of which attention workers hold."""
    return attention_parameters(model) + dense_parameters(model) + 2 * model.hidden


def matrix_of_vocabulary(model: ModelConfig) -> int:
    """Parameters of the embedding, and of the LM head: h V."""
    return model.hidden * model.vocab_size


def total_parameters(model: ModelConfig) -> int:
    """Parameters of the whole model."""
    vocabularies = 1 if model.tied_embeddings else 2
    layer = attention_side_parameters(model) + model.experts * expert_parameters(model)
    return (
        model.moe_layers * layer
        + model.dense_layers * dense_layer_parameters(model)
        + vocabularies * matrix_of_vocabulary(model)
        + model.hidden  # the last norm
    )


def active_parameters(model: ModelConfig, *, vocabularies: int = 2) -> int:
    """Parameters that one token meets. Publishers count embedding and LM head differently: as 0, 1
    or 2 `vocabularies`."""
    layer = attention_side_parameters(model) + model.top_k * expert_parameters(model)
    return (
        model.moe_layers * layer
        + model.dense_layers * dense_layer_parameters(model)
        + vocabularies * matrix_of_vocabulary(model)
        + model.hidden
    )
