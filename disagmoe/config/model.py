"""The shape of the network: attention, router and experts."""

from typing import Literal

from pydantic import Field

from disagmoe.config.base import Section

Family = Literal["mixtral", "qwen3_moe"]


class ModelConfig(Section):
    """A decoder of pre-norm blocks, each an attention layer and a mixture of SwiGLU experts."""

    family: Family
    """Which public architecture the network equals number by number; `mixtral` has no q/k norm and
    always renormalises the top-k weights, `qwen3_moe` normalises queries and keys per head."""
    vocab_size: int = Field(ge=2)
    """Rows of the embedding and of the LM head, in tokens; at least the tokenizer's size."""
    hidden: int = Field(ge=1)
    """Width of the residual stream."""
    layers: int = Field(ge=1)
    """Number of blocks."""
    heads: int = Field(ge=1)
    """Query heads."""
    kv_heads: int = Field(ge=1)
    """Key/value heads; divides `heads`."""
    head_dim: int = Field(ge=2)
    """Width of one head; even, because rotary embeddings turn pairs."""
    experts: int = Field(ge=1)
    """Experts per layer; need not divide by the number of expert workers."""
    top_k: int = Field(ge=1)
    """Experts that each token visits."""
    expert_width: int = Field(ge=1)
    """Inner width of one SwiGLU expert."""
    norm_topk_prob: bool = True
    """Divide the top-k router weights by their sum. Mixtral always does."""
    forced_balance: bool = False
    """Send each token to experts that are drawn at random, equally often, instead of those that the
    router prefers; for benchmarks, whose load then does not depend on what was learnt."""
    rope_theta: float = Field(default=10000.0, gt=0)
    """Base of the rotary frequencies."""
    norm_eps: float = Field(default=1e-6, gt=0)
    """Added to the mean square inside every RMSNorm."""
    tied_embeddings: bool = False
    """Use the embedding matrix as LM head."""
    init_std: float = Field(default=0.02, gt=0)
    """Standard deviation of the normal distribution that matrices start from; norms start at 1."""
