"""`config.json` of a Transformers model from our settings, and back."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from disagmoe.config.families import TRAINED, TRAITS
from disagmoe.config.model import ModelConfig, ModelFile, YarnConfig
from disagmoe.config.model_rules import MODEL_RULES
from disagmoe.errors import ConfigError

Json = Mapping[str, Any]

ARCHITECTURES = {
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "deepseek": "DeepseekForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}
_DEEPSEEK = frozenset({"deepseek", "deepseek_v2", "deepseek_v3"})
_LATENT = frozenset({"deepseek_v2", "deepseek_v3"})
_SAME = {
    "vocab_size": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "top_k": "num_experts_per_tok",
    "norm_eps": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings",
}
_EXPERTS = {"mixtral": "num_local_experts", "gpt_oss": "num_local_experts"} | dict.fromkeys(
    _DEEPSEEK, "n_routed_experts"
)
_WIDTH = dict.fromkeys(("mixtral", "gpt_oss", "olmoe"), "intermediate_size")
_FIXED: dict[str, dict[str, Any]] = {
    "mixtral": {"sliding_window": None},
    "qwen3_moe": {
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    },
    "qwen2_moe": {
        "qkv_bias": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    },
    "olmoe": {"attention_bias": False, "clip_qkv": None},
    "gpt_oss": {"attention_bias": True, "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    "deepseek": {"attention_bias": False, "moe_layer_freq": 1, "scoring_func": "softmax"},
    "deepseek_v2": {"attention_bias": False, "moe_layer_freq": 1, "scoring_func": "softmax"},
    "deepseek_v3": {
        "attention_bias": False,
        "moe_layer_freq": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "rope_interleave": True,
    },
}
"""What each family always has here; a file may leave it out, but not differ."""
_YARN = {
    "factor": "factor",
    "original_length": "original_max_position_embeddings",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "truncate": "truncate",
}


def to_hf(model: ModelConfig, *, max_positions: int) -> dict[str, Any]:
    """Return the settings that Transformers 4 and 5 read as this network.

    `max_positions` is the longest sequence that it is meant for. Raises ConfigError for a network
    that Transformers cannot express.
    """
    if model.family not in TRAINED:
        raise ConfigError(f"model.family = {model.family!r} cannot be trained, nor exported")
    family = model.family
    settings: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "hidden_act": "silu",
        "max_position_embeddings": max_positions,
        "initializer_range": model.init_std,
        "use_cache": True,
    }
    settings |= {theirs: getattr(model, ours) for ours, theirs in _SAME.items()}
    settings |= _FIXED[family]
    settings[_EXPERTS.get(family, "num_experts")] = model.experts
    settings[_WIDTH.get(family, "moe_intermediate_size")] = model.expert_width
    settings |= _rope_settings(model)
    settings |= dict(_more_settings(model))
    problems = list(_inexpressible(model))
    if problems:
        raise ConfigError(problems)
    return settings


def _more_settings(model: ModelConfig) -> Iterator[tuple[str, Any]]:
    family = model.family
    if family in ("mixtral", "qwen3_moe", "gpt_oss"):
        yield "head_dim", model.head_dim
    if TRAITS[family].renormalises is None or family == "deepseek_v2":
        yield "norm_topk_prob", model.norm_topk_prob
    if family == "gpt_oss":
        windows = [model.window_of(layer) for layer in range(model.layers)]
        yield "sliding_window", model.window or 128  # Transformers wants one in any case
        yield "layer_types", ["sliding_attention" if w else "full_attention" for w in windows]
    if family == "qwen2_moe":
        yield "shared_expert_intermediate_size", model.shared_width
        yield "intermediate_size", model.shared_width
    if family in _DEEPSEEK:
        yield "first_k_dense_replace", model.dense_layers
        yield "intermediate_size", model.dense_width or model.expert_width
        yield "n_shared_experts", model.shared_width // model.expert_width
    if family in _LATENT:
        yield "routed_scaling_factor", model.routed_scaling
        yield "q_lora_rank", model.q_lora_rank or None
        yield "kv_lora_rank", model.kv_lora_rank
        yield "qk_nope_head_dim", model.qk_nope_head_dim
        yield "qk_rope_head_dim", model.qk_rope_head_dim
        yield "v_head_dim", model.head_dim
        yield "n_group", model.expert_groups
        yield "topk_group", model.top_groups
    if family == "deepseek_v2":
        yield "topk_method", "greedy" if model.expert_groups == 1 else "group_limited_greedy"


def _rope_settings(model: ModelConfig) -> dict[str, Any]:
    settings: dict[str, Any] = {"rope_theta": model.rope_theta, "rope_scaling": None}
    if model.family == "gpt_oss":  # whose default is YaRN
        settings["rope_scaling"] = {"type": "default", "rope_type": "default"}
    if model.yarn.factor > 1:
        scaling = {theirs: getattr(model.yarn, ours) for ours, theirs in _YARN.items()}
        unused = [key for key in ("mscale", "mscale_all_dim") if not scaling[key]]
        for key in unused:
            del scaling[key]
        settings["rope_scaling"] = scaling | {"type": "yarn", "rope_type": "yarn"}
    return settings


def _inexpressible(model: ModelConfig) -> Iterator[str]:
    """What a network may be here, but not in Transformers."""
    own_width = model.family in ("mixtral", "qwen3_moe", "gpt_oss") or model.kv_lora_rank
    if not own_width and model.head_dim * model.heads != model.hidden:
        yield (
            f"model.head_dim = {model.head_dim}, but Transformers' {model.family} has hidden / "
            f"heads = {model.hidden} / {model.heads}"
        )
    if model.family in _DEEPSEEK and (
        not model.shared_width or model.shared_width % model.expert_width
    ):
        yield (
            f"model.shared_width = {model.shared_width}, but Transformers' {model.family} has one "
            f"or more shared experts of model.expert_width = {model.expert_width}"
        )
    if model.family not in _LATENT and model.routed_scaling != 1.0:
        yield (
            f"model.routed_scaling = {model.routed_scaling:g}, but Transformers' {model.family} "
            "has no such factor; use 1.0"
        )


def from_hf(settings: Json) -> ModelConfig:
    """Return our settings of the network that a `config.json` describes.

    Raises ConfigError with everything that is not known here: a wrong network must not pass.
    """
    family = settings.get("model_type")
    if family not in TRAINED:
        raise ConfigError(
            f"model_type = {family!r} is no family that can be trained; use one of "
            f"{', '.join(sorted(TRAINED))}"
        )
    problems = list(_unknown(str(family), settings))
    if problems:
        raise ConfigError(problems)
    try:
        model = ModelConfig.model_validate(_values(str(family), settings))
    except KeyError as error:
        raise ConfigError(f"config.json has no {error}, which {family} needs") from None
    except ValidationError as error:
        raise ConfigError(f"config.json describes no legal network: {error}") from None
    problems = [problem for rule in MODEL_RULES for problem in rule(ModelFile(model=model))]
    if problems:
        raise ConfigError(problems)
    return model


def _unknown(family: str, settings: Json) -> Iterator[str]:
    if settings.get("hidden_act", "silu") not in ("silu", "swish"):
        yield f"hidden_act = {settings['hidden_act']!r}; expected 'silu'"
    for key, expected in _FIXED[family].items():
        found = settings.get(key, expected)
        if found != expected and not (not found and not expected):
            yield f"{key} = {found!r} is not supported for {family}; expected {expected!r}"
    rope = _rope(settings)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "yarn"):
        yield f"rope type {kind!r} is not supported; expected 'default' or 'yarn'"
    known = {*_YARN.values(), "rope_type", "type", "rope_theta"}
    for key in sorted(rope.keys() - known if kind == "yarn" else ()):
        if rope[key] is not None and key != "attention_factor":
            yield f"yarn setting {key!r} is not known; expected {', '.join(sorted(known))}"
    if kind == "yarn" and rope.get("attention_factor") is not None:
        yield "yarn setting 'attention_factor' is not supported; leave it out"
    methods = ("greedy", "group_limited_greedy")
    if family == "deepseek_v2" and settings.get("topk_method", "greedy") not in methods:
        yield f"topk_method = {settings['topk_method']!r}; expected one of {', '.join(methods)}"


def _values(family: str, settings: Json) -> dict[str, Any]:
    values: dict[str, Any] = {"family": family}
    required = ("vocab_size", "hidden", "layers", "heads", "top_k")
    for ours, theirs in _SAME.items():
        if theirs in settings and settings[theirs] is not None:
            values[ours] = settings[theirs]
        elif ours in required:
            raise KeyError(theirs)
    values.setdefault("kv_heads", values["heads"])
    values["experts"] = _experts(family, settings)
    values["expert_width"] = settings[_WIDTH.get(family, "moe_intermediate_size")]
    width = settings["v_head_dim"] if family in _LATENT else settings.get("head_dim")
    values["head_dim"] = width or values["hidden"] // values["heads"]
    if TRAITS[family].renormalises is None:  # type: ignore[index]
        values["norm_topk_prob"] = settings.get("norm_topk_prob", family == "deepseek_v3")
    if family == "deepseek_v2":
        values["norm_topk_prob"] = False
    if "initializer_range" in settings:
        values["init_std"] = settings["initializer_range"]
    values |= _rope_values(settings)
    values |= _special_values(family, settings)
    return values


def _experts(family: str, settings: Json) -> Any:
    """Transformers 5 saves some families under a name of another one."""
    own = _EXPERTS.get(family, "num_experts")
    for key in (own, "num_experts", "num_local_experts", "n_routed_experts"):
        if settings.get(key) is not None:
            return settings[key]
    raise KeyError(own)


def _special_values(family: str, settings: Json) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if family == "gpt_oss":
        values |= _window_values(settings)
    if family == "qwen2_moe":
        values["shared_width"] = settings["shared_expert_intermediate_size"]
    if family in _DEEPSEEK:
        dense = settings.get("first_k_dense_replace") or 0
        shared = settings.get("n_shared_experts") or 0
        values["dense_layers"] = dense
        values["dense_width"] = settings["intermediate_size"] if dense else 0
        values["shared_width"] = shared * settings["moe_intermediate_size"]
    if family in _LATENT:
        values["routed_scaling"] = settings.get("routed_scaling_factor", 1.0)
        values["q_lora_rank"] = settings.get("q_lora_rank") or 0
        for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"):
            values[key] = settings[key]
        greedy = settings.get("topk_method") == "greedy"
        values["expert_groups"] = 1 if greedy else settings.get("n_group") or 1
        values["top_groups"] = 1 if greedy else settings.get("topk_group") or 1
    return values


def _window_values(settings: Json) -> dict[str, Any]:
    window = settings.get("sliding_window") or 0
    kinds = settings.get("layer_types")
    if not window or (kinds is not None and "sliding_attention" not in kinds):
        return {}
    every = 2 if kinds is None else kinds.index("full_attention") + 1
    expected = [
        "sliding_attention" if (layer + 1) % every else "full_attention"
        for layer in range(settings["num_hidden_layers"])
    ]
    if kinds is not None and kinds != expected:
        raise ConfigError(
            f"layer_types = {kinds}; expected windows but in every {every}th layer: {expected}"
        )
    return {"window": window, "full_attention_every": every}


def _rope(settings: Json) -> dict[str, Any]:
    """The rotary settings in the way of Transformers 5, from either way of writing them."""
    given = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    return {"rope_theta": settings.get("rope_theta"), **given}


def _rope_values(settings: Json) -> dict[str, Any]:
    rope = _rope(settings)
    values: dict[str, Any] = {}
    if rope.get("rope_theta") is not None:
        values["rope_theta"] = rope["rope_theta"]
    if rope.get("rope_type", rope.get("type")) == "yarn":
        yarn = {ours: rope[t] for ours, t in _YARN.items() if rope.get(t) is not None}
        values["yarn"] = YarnConfig.model_validate(yarn)
    return values
