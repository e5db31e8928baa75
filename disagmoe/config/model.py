"""The shape of the network: attention, router and experts."""

from typing import Literal

from pydantic import Field

from disagmoe.config.base import Section

Family = Literal[
    "mixtral",
    "qwen3_moe",
    "olmoe",
    "qwen2_moe",
    "glm4_moe",
    "gpt_oss",
    "deepseek",
    "deepseek_v2",
    "deepseek_v3",
]
TRAINED: frozenset[Family] = frozenset({"mixtral", "qwen3_moe"})
"""Families that a run can train; the planning commands know all of them."""


class ModelConfig(Section):
    """A decoder of pre-norm blocks, each an attention layer and a mixture of SwiGLU experts. `model
    = "FILE"` takes it from a model file, such as those in `configs/models`."""

    family: Family
    """Which public architecture the network equals number by number, by its `model_type` in
    Transformers. `train` knows `mixtral` (no q/k norm, always renormalises the top-k weights) and
    `qwen3_moe` (normalises queries and keys per head); the planning commands know all."""
    vocab_size: int = Field(ge=2)
    """Rows of the embedding and of the LM head, in tokens; at least the tokenizer's size."""
    hidden: int = Field(ge=1)
    """Width of the residual stream."""
    layers: int = Field(ge=1)
    """Number of blocks, dense ones included."""
    heads: int = Field(ge=1)
    """Query heads."""
    kv_heads: int = Field(ge=1)
    """Key/value heads; divides `heads`."""
    head_dim: int = Field(ge=2)
    """Width of one head; even, because rotary embeddings turn pairs. With `kv_lora_rank` that of a
    value head."""
    q_lora_rank: int = Field(default=0, ge=0)
    """Width of the compressed queries of multi-head latent attention (MLA); 0 does not compress
    them."""
    kv_lora_rank: int = Field(default=0, ge=0)
    """Width of the compressed keys and values of MLA, which the DeepSeek families have from V2 on;
    0 is plain attention."""
    qk_nope_head_dim: int = Field(default=0, ge=0)
    """With MLA: the part of a query or key head that is not rotated."""
    qk_rope_head_dim: int = Field(default=0, ge=0)
    """With MLA: the rotated part, one for all key heads."""
    window: int = Field(default=0, ge=0)
    """Keys that a query sees in a layer with a sliding window, itself included; 0 has no windows.
    """
    full_attention_every: int = Field(default=1, ge=1)
    """With `window`: every how many layers one sees all keys, the last of them (2: the first layer
    has a window, the second has not, and so on)."""
    experts: int = Field(ge=1)
    """Experts per layer; need not divide by the number of expert workers."""
    top_k: int = Field(ge=1)
    """Experts that each token visits."""
    expert_groups: int = Field(default=1, ge=1)
    """Groups that the experts of a layer are divided into for limited routing (`n_group`)."""
    top_groups: int = Field(default=1, ge=1)
    """Groups that the experts of one token come from at most (`topk_group`)."""
    expert_width: int = Field(ge=1)
    """Inner width of one SwiGLU expert."""
    shared_width: int = Field(default=0, ge=0)
    """Inner width of the experts that all tokens visit, together; 0 has none."""
    dense_layers: int = Field(default=0, ge=0)
    """First layers that have one dense SwiGLU instead of experts."""
    dense_width: int = Field(default=0, ge=0)
    """Its inner width; 0 without dense layers."""
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

    @property
    def moe_layers(self) -> int:
        """Layers with experts: those that pass the ring."""
        return self.layers - self.dense_layers

    @property
    def qk_head_dim(self) -> int:
        """Width of a query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim if self.kv_lora_rank else self.head_dim

    def window_of(self, layer: int) -> int:
        """Keys that a query of `layer` sees at most, dense layers counted; 0 for all."""
        return self.window if (layer + 1) % self.full_attention_every else 0


class ModelFile(Section):
    """A model on its own, as in `configs/models`."""

    model: ModelConfig
    """The network."""
