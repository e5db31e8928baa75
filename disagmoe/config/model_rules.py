"""What must hold between the settings of a model, in a run and in a model file alike."""

from collections.abc import Callable, Iterator
from typing import Protocol

from disagmoe.config.catalogue import join_words
from disagmoe.config.families import TRAITS
from disagmoe.config.model import Family, ModelConfig, YarnConfig
from disagmoe.config.phrases import divisors, list_numbers, span
from disagmoe.config.tomlwrite import format_value


class HasModel(Protocol):
    """A config with a model in it."""

    @property
    def model(self) -> ModelConfig:
        """The network."""


ModelRule = Callable[[HasModel], Iterator[str]]

_SHARED: frozenset[Family] = frozenset(
    {"deepseek", "deepseek_v2", "deepseek_v3", "glm4_moe", "qwen2_moe"}
)
_MLA: frozenset[Family] = frozenset({"deepseek_v2", "deepseek_v3"})
_ATTENTION_OF: dict[str, frozenset[Family]] = {
    "q_lora_rank": _MLA,
    "kv_lora_rank": _MLA,
    "qk_nope_head_dim": _MLA,
    "qk_rope_head_dim": _MLA,
    "window": frozenset({"gpt_oss"}),
    "full_attention_every": frozenset({"gpt_oss"}),
}
_EXPERTS_OF: dict[str, frozenset[Family]] = {
    "expert_groups": _MLA,
    "top_groups": _MLA,
    "shared_width": _SHARED,
    "dense_layers": _SHARED - {"qwen2_moe"},
    "dense_width": _SHARED - {"qwen2_moe"},
}


def attention_fits_family(config: HasModel) -> Iterator[str]:
    """`model.q_lora_rank`, `model.kv_lora_rank`, `model.qk_nope_head_dim`,
    `model.qk_rope_head_dim`, `model.window` and `model.full_attention_every` keep their defaults
    where the `model.family` has no such thing."""
    yield from _misfits(config.model, _ATTENTION_OF)


def experts_fit_family(config: HasModel) -> Iterator[str]:
    """`model.expert_groups`, `model.top_groups`, `model.shared_width`, `model.dense_layers` and
    `model.dense_width` keep their defaults where the `model.family` has no such thing."""
    yield from _misfits(config.model, _EXPERTS_OF)


def _misfits(model: ModelConfig, families_of: dict[str, frozenset[Family]]) -> Iterator[str]:
    for name, families in families_of.items():
        value, default = getattr(model, name), ModelConfig.model_fields[name].default
        if value != default and model.family not in families:
            yield (
                f"model.{name} = {value}, but the family {format_value(model.family)} has no such "
                f"thing; use {default}, or family "
                f"{join_words([format_value(family) for family in sorted(families)])}"
            )


def latent_attention_is_whole(config: HasModel) -> Iterator[str]:
    """`model.kv_lora_rank`, `model.qk_nope_head_dim` and `model.qk_rope_head_dim` are all given for
    `deepseek_v2` and `deepseek_v3`, whose `model.kv_heads` equal `model.heads`."""
    model = config.model
    if model.family not in _MLA:
        return
    for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"):
        if getattr(model, name) == 0:
            yield (
                f"model.{name} = 0, but the family {format_value(model.family)} has multi-head "
                "latent attention; use an integer >= 1"
            )
    if model.kv_heads != model.heads:
        yield (
            f"model.kv_heads = {model.kv_heads}, but with multi-head latent attention every head "
            f"has keys of its own; use {model.heads}"
        )


def windows_alternate(config: HasModel) -> Iterator[str]:
    """`model.window` and `model.full_attention_every` > 1 come together."""
    model = config.model
    if model.window and model.full_attention_every == 1:
        yield (
            f"model.window = {model.window}, but full_attention_every = 1 lets every layer see all "
            "keys; use 2 or more, or window = 0"
        )
    if model.full_attention_every > 1 and not model.window:
        yield (
            f"model.full_attention_every = {model.full_attention_every} has no effect without "
            "windows; give model.window, or use 1"
        )


def dense_layers_have_width(config: HasModel) -> Iterator[str]:
    """`model.dense_layers` and `model.dense_width` come together, and at least one layer of
    `model.layers` has experts."""
    model = config.model
    if model.dense_layers >= model.layers:
        yield (
            f"model.dense_layers = {model.dense_layers} leaves none of model.layers = "
            f"{model.layers} with experts; use {span(0, model.layers - 1)}"
        )
    if model.dense_layers and not model.dense_width:
        yield f"model.dense_width = 0, but model.dense_layers = {model.dense_layers}; give a width"
    if model.dense_width and not model.dense_layers:
        yield (
            f"model.dense_width = {model.dense_width} has no effect with model.dense_layers = 0; "
            "use 0, or give dense layers"
        )


def groups_of_experts_fit(config: HasModel) -> Iterator[str]:
    """`model.expert_groups` divides `model.experts`, and `model.top_groups` is at most that many
    and leaves each token `model.top_k` experts."""
    model = config.model
    groups, top = model.expert_groups, model.top_groups
    if model.family not in _MLA:
        return
    if model.experts % groups:
        yield (
            f"model.expert_groups = {groups} does not divide model.experts = {model.experts}; "
            f"use {list_numbers(divisors(model.experts))}"
        )
    elif top > groups:
        yield (
            f"model.top_groups = {top} is more than model.expert_groups = {groups}; "
            f"use {span(1, groups)}"
        )
    elif top * (model.experts // groups) < model.top_k <= model.experts:
        yield (
            f"model.top_groups = {top} of {groups} groups of {model.experts // groups} experts "
            f"leave a token fewer than model.top_k = {model.top_k}; use more groups"
        )


def heads_share_keys(config: HasModel) -> Iterator[str]:
    """`model.kv_heads` divides `model.heads`."""
    heads, kv_heads = config.model.heads, config.model.kv_heads
    if heads % kv_heads:
        yield (
            f"model.kv_heads = {kv_heads} does not divide model.heads = {heads}; "
            f"use {list_numbers(divisors(heads))}"
        )


def head_dim_is_even(config: HasModel) -> Iterator[str]:
    """`model.head_dim` is even, and so is `model.qk_rope_head_dim`."""
    for name in ("head_dim", "qk_rope_head_dim"):
        width = getattr(config.model, name)
        if width % 2:
            yield (
                f"model.{name} = {width} is odd, but rotary embeddings turn pairs; "
                f"use {width - 1} or {width + 1}"
            )


def tokens_find_experts(config: HasModel) -> Iterator[str]:
    """`model.top_k` is at most `model.experts`."""
    top_k, experts = config.model.top_k, config.model.experts
    if top_k > experts:
        yield (
            f"model.top_k = {top_k} is more than model.experts = {experts}; use {span(1, experts)}"
        )


def gates_are_the_familys(config: HasModel) -> Iterator[str]:
    """`model.norm_topk_prob` is true for the families `mixtral` and `gpt_oss` and false for
    `deepseek_v2`."""
    model = config.model
    own = TRAITS.get(model.family)
    fixed = None if own is None else own.renormalises
    if fixed is not None and model.norm_topk_prob != fixed:
        yield (
            f"model.norm_topk_prob = {format_value(model.norm_topk_prob)}, but model.family = "
            f'"{model.family}" {"always" if fixed else "never"} renormalises; use '
            f"{format_value(fixed)}, or another family"
        )


def yarn_settings_have_a_factor(config: HasModel) -> Iterator[str]:
    """`model.yarn` keeps its defaults where `model.yarn.factor` is 1."""
    yarn = config.model.yarn
    if yarn.factor > 1:
        return
    for name, field in YarnConfig.model_fields.items():
        if getattr(yarn, name) != field.default:
            yield (
                f"model.yarn.{name} = {format_value(getattr(yarn, name))} has no effect with "
                "model.yarn.factor = 1; give a factor above 1, or leave it out"
            )


def groups_have_two_to_score(config: HasModel) -> Iterator[str]:
    """With several `model.expert_groups` in `deepseek_v3`, each has at least two of
    `model.experts`, because their two best decide."""
    model = config.model
    own = TRAITS.get(model.family)
    if own is None or own.group_score == "best" or model.expert_groups == 1:
        return
    if model.experts // model.expert_groups == 1 and model.top_groups >= model.top_k:
        yield (
            f"model.expert_groups = {model.expert_groups} has one of model.experts = "
            f"{model.experts} each, but {model.family} chooses groups by their two best; use "
            "fewer groups"
        )


MODEL_RULES: tuple[ModelRule, ...] = (
    heads_share_keys,
    head_dim_is_even,
    tokens_find_experts,
    gates_are_the_familys,
    yarn_settings_have_a_factor,
    groups_have_two_to_score,
    attention_fits_family,
    experts_fit_family,
    latent_attention_is_whole,
    windows_alternate,
    dense_layers_have_width,
    groups_of_experts_fit,
)
