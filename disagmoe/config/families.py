"""What tells the families apart beside their sizes: from the modelling files of Transformers 5, by
`model_type`, and for `deepseek` (the first DeepSeek-MoE) from arXiv:2401.06066."""

from dataclasses import dataclass
from typing import Literal

from disagmoe.config.model import Family, ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties that no setting changes."""

    qk_norm: Literal["none", "heads", "whole"] = "none"
    """Queries and keys are normalised: each head with one weight vector, or all heads together."""
    qkv_bias: bool = False
    output_bias: bool = False
    sinks: bool = False
    """One logit per head takes up attention (arXiv:2309.17453; GPT-OSS learns it)."""
    interleaved_rope: bool = False
    """Rotary pairs are neighbours (2i, 2i + 1) instead of (i, i + half)."""
    scores: Literal["softmax", "sigmoid"] = "softmax"
    """Router scores of all experts, of which the gates are a part."""
    balance_bias: bool = False
    """The choice of experts is by score plus a bias that no gradient moves (`e_score_correction_
    bias`, arXiv:2408.15664)."""
    group_score: Literal["best", "best two"] = "best"
    """What a group of experts is chosen by: its best score, or the sum of its two best."""
    renormalises: bool | None = None
    """Whether gates are divided by their sum; None leaves it to `model.norm_topk_prob`."""
    expert_bias: bool = False
    """Biases of router and experts, whose activation is then the clamped SwiGLU of GPT-OSS."""
    shared_gate: bool = False
    """What the shared experts give is multiplied by a sigmoid gate."""


TRAITS: dict[Family, Traits] = {
    "mixtral": Traits(renormalises=True),
    "qwen3_moe": Traits(qk_norm="heads"),
    "olmoe": Traits(qk_norm="whole"),
    "qwen2_moe": Traits(qkv_bias=True, shared_gate=True),
    "gpt_oss": Traits(
        qkv_bias=True, output_bias=True, sinks=True, renormalises=True, expert_bias=True
    ),
    "deepseek": Traits(),
    "deepseek_v2": Traits(interleaved_rope=True, renormalises=False),
    "deepseek_v3": Traits(
        interleaved_rope=True, scores="sigmoid", balance_bias=True, group_score="best two"
    ),
}
TRAINED = frozenset(TRAITS)
"""Families that a run can train; the planning commands know all of them."""


def traits(config: ModelConfig) -> Traits:
    """Return the traits of a network that can be trained."""
    return TRAITS[config.family]


def renormalises(config: ModelConfig) -> bool:
    """Whether the gates of a token add up to the scaling factor."""
    fixed = traits(config).renormalises
    return config.norm_topk_prob if fixed is None else fixed
