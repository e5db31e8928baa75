"""Rules between the settings of a model, each by its message."""

import pytest

from disagmoe.config.load import load_model, override
from disagmoe.config.model import ModelFile
from disagmoe.config.model_rules import MODEL_RULES
from disagmoe.config.starter import STARTER
from disagmoe.config.tomlread import apply_set
from disagmoe.config.tomlwrite import dump_toml
from disagmoe.errors import ConfigError

MLA = [
    "model.family=deepseek_v3",
    "model.kv_lora_rank=16",
    "model.qk_nope_head_dim=8",
    "model.qk_rope_head_dim=4",
    "model.kv_heads=6",
]
WINDOWS = ["model.family=gpt_oss", "model.window=64", "model.full_attention_every=2"]
DENSE = ["model.family=deepseek", "model.dense_layers=1", "model.dense_width=64"]

REFUSED = [
    (
        ["model.kv_heads=4"],
        "model.kv_heads = 4 does not divide model.heads = 6; use 1, 2, 3 or 6",
    ),
    (
        ["model.head_dim=5"],
        "model.head_dim = 5 is odd, but rotary embeddings turn pairs; use 4 or 6",
    ),
    (
        [*MLA, "model.qk_rope_head_dim=5"],
        "model.qk_rope_head_dim = 5 is odd, but rotary embeddings turn pairs; use 4 or 6",
    ),
    (["model.top_k=9"], "model.top_k = 9 is more than model.experts = 8; use 1 to 8"),
    (
        ["model.family=mixtral", "model.norm_topk_prob=false"],
        'model.norm_topk_prob = false, but model.family = "mixtral" always renormalises; '
        "use true, or another family",
    ),
    (
        ["model.shared_width=64"],
        'model.shared_width = 64, but the family "qwen3_moe" has no such thing; use 0, or family '
        '"deepseek", "deepseek_v2", "deepseek_v3", "glm4_moe" or "qwen2_moe"',
    ),
    (
        ["model.family=gpt_oss", "model.kv_lora_rank=2"],
        'model.kv_lora_rank = 2, but the family "gpt_oss" has no such thing; use 0, or family '
        '"deepseek_v2" or "deepseek_v3"',
    ),
    (
        [*MLA, "model.kv_lora_rank=0"],
        'model.kv_lora_rank = 0, but the family "deepseek_v3" has multi-head latent attention; '
        "use an integer >= 1",
    ),
    (
        [*MLA, "model.kv_heads=2"],
        "model.kv_heads = 2, but with multi-head latent attention every head has keys of its own; "
        "use 6",
    ),
    (
        [*WINDOWS, "model.full_attention_every=1"],
        "model.window = 64, but full_attention_every = 1 lets every layer see all keys; use 2 or "
        "more, or window = 0",
    ),
    (
        [*WINDOWS, "model.window=0"],
        "model.full_attention_every = 2 has no effect without windows; give model.window, or use 1",
    ),
    (
        [*DENSE, "model.dense_layers=4"],
        "model.dense_layers = 4 leaves none of model.layers = 4 with experts; use 0 to 3",
    ),
    (
        [*DENSE, "model.dense_width=0"],
        "model.dense_width = 0, but model.dense_layers = 1; give a width",
    ),
    (
        [*DENSE, "model.dense_layers=0"],
        "model.dense_width = 64 has no effect with model.dense_layers = 0; use 0, or give dense "
        "layers",
    ),
    (
        [*MLA, "model.expert_groups=3"],
        "model.expert_groups = 3 does not divide model.experts = 8; use 1, 2, 4 or 8",
    ),
    (
        [*MLA, "model.expert_groups=4", "model.top_groups=5"],
        "model.top_groups = 5 is more than model.expert_groups = 4; use 1 to 4",
    ),
    (
        [*MLA, "model.expert_groups=8", "model.top_groups=4"],
        "model.expert_groups = 8 has one of model.experts = 8 each, but deepseek_v3 chooses groups "
        "by their two best; use fewer groups",
    ),
    (
        ["model.yarn.beta_fast=16"],
        "model.yarn.beta_fast = 16.0 has no effect with model.yarn.factor = 1; give a factor above "
        "1, or leave it out",
    ),
    (
        [*MLA, "model.expert_groups=8", "model.top_groups=1"],
        "model.top_groups = 1 of 8 groups of 1 experts leave a token fewer than model.top_k = 2; "
        "use more groups",
    ),
]


@pytest.mark.parametrize(("sets", "problem"), REFUSED)
def test_refused(sets, problem):
    with pytest.raises(ConfigError) as caught:
        override(STARTER, sets)
    assert caught.value.problems == [problem]


def rules_broken_by(sets):
    tree = {"model": STARTER.model.model_dump()}
    for assignment in sets:
        apply_set(tree, assignment)
    config = ModelFile.model_validate(tree)
    return {rule.__name__ for rule in MODEL_RULES if list(rule(config))}


def test_every_rule_is_refused_by_a_case_above():
    broken = [rules_broken_by(sets) for sets, _ in REFUSED]
    assert set().union(*broken) == {rule.__name__ for rule in MODEL_RULES}
    assert [len(names) for names in broken] == [1] * len(broken)


@pytest.mark.parametrize("sets", [MLA, WINDOWS, DENSE, [*MLA, "model.q_lora_rank=12"]])
def test_legal(sets):
    assert override(STARTER, sets).model.family != "qwen3_moe"


def test_a_model_file_is_checked_as_a_run_is(tmp_path):
    path = tmp_path / "model.toml"
    text = dump_toml(ModelFile(model=STARTER.model))
    path.write_text(text)
    assert load_model(path) == STARTER.model
    path.write_text(text.replace("\nexperts = 8", "\nnum_expert = 8").replace("\nheads = 6", ""))
    with pytest.raises(ConfigError) as caught:
        load_model(path)
    assert str(caught.value) == (
        f"{path}: 3 problems\n"
        "  - model.num_expert is no setting; did you mean model.experts?\n"
        "  - model.heads is missing; expected an integer >= 1\n"
        "  - model.experts is missing; expected an integer >= 1"
    )
    path.write_text("[model]\n\n[train]\nsteps = 3\n")
    with pytest.raises(ConfigError, match=r"train\.steps is no setting"):
        load_model(path)
