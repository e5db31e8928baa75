import pytest

from disagmoe.config.model import ModelConfig
from disagmoe.errors import ConfigError
from disagmoe.hf.settings import from_hf, to_hf
from tests.unit.costs.public_models import MODELS as PUBLIC
from tests.unit.hf.models import MODELS, TIED

ALL = MODELS | {"tied": TIED}


@pytest.mark.parametrize("name", ALL)
def test_there_and_back(name: str) -> None:
    assert from_hf(to_hf(ALL[name], max_positions=64)) == ALL[name]


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - {"glm-4.5", "glm-4.5-air"}))
def test_public_models_there_and_back(name: str) -> None:
    model = PUBLIC[name]
    assert from_hf(to_hf(model, max_positions=4096)) == model


def test_either_way_of_writing_rotary_settings_is_read() -> None:
    old = to_hf(MODELS["deepseek_v2/20"], max_positions=64)
    scaling = old["rope_scaling"]
    new = {key: value for key, value in old.items() if not key.startswith("rope")}
    new["rope_parameters"] = {**scaling, "rope_theta": old["rope_theta"]}
    assert from_hf(new) == from_hf(old)


def settings(name: str, **changes: object) -> dict[str, object]:
    return to_hf(MODELS[name], max_positions=64) | changes


REFUSED = [
    (settings("mixtral/20", model_type="llama"), r"model_type = 'llama' is no family"),
    (settings("mixtral/20", hidden_act="gelu"), r"hidden_act = 'gelu'; expected 'silu'"),
    (settings("mixtral/20", sliding_window=128), r"sliding_window = 128 is not supported"),
    (settings("olmoe/20", clip_qkv=8.0), r"clip_qkv = 8.0 is not supported for olmoe"),
    (settings("qwen3_moe/20", mlp_only_layers=[0]), r"mlp_only_layers = \[0\] is not supported"),
    (settings("deepseek_v3/20", attention_bias=True), r"attention_bias = True is not supported"),
    (settings("deepseek_v2/20", topk_method="best"), r"topk_method = 'best'; expected one of"),
    (settings("gpt_oss/20", swiglu_limit=5.0), r"swiglu_limit = 5.0 is not supported"),
    (settings("mixtral/20", rope_scaling={"rope_type": "llama3"}), r"rope type 'llama3'"),
    (
        settings("deepseek_v2/20", rope_scaling={"rope_type": "yarn", "factor": 2.0, "mscle": 1}),
        r"yarn setting 'mscle' is not known",
    ),
    (
        settings("gpt_oss/20", layer_types=["full_attention"] * 2 + ["sliding_attention"]),
        r"layer_types = .*; expected windows but in every 1th layer",
    ),
    (
        {k: v for k, v in settings("mixtral/20").items() if k != "hidden_size"},
        r"config.json has no 'hidden_size', which mixtral needs",
    ),
    (settings("mixtral/20", num_attention_heads=5), r"kv_heads = 2 does not divide model.heads"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_what_is_not_known_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_hf(given)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "olmoe/20",
            {"head_dim": 16},
            r"head_dim = 16, but Transformers' olmoe has hidden / heads",
        ),
        ("deepseek_v3/20", {"shared_width": 0}, r"shared_width = 0, but .* one or more shared"),
        ("mixtral/20", {"routed_scaling": 2.0}, r"mixtral has no such factor; use 1.0"),
    ],
)
def test_what_transformers_cannot_express_is_refused(
    name: str, changes: dict[str, object], message: str
) -> None:
    model = ModelConfig.model_validate(MODELS[name].model_dump() | changes)
    with pytest.raises(ConfigError, match=message):
        to_hf(model, max_positions=64)
