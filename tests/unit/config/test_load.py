"""From a file and --set to a config, and every problem in one report."""

from pathlib import Path

import pytest

from disagmoe.config.load import load_run_config, override, parse_run_config
from disagmoe.config.model import ModelFile
from disagmoe.config.run import RunConfig
from disagmoe.config.starter import STARTER
from disagmoe.config.tomlwrite import dump_toml
from disagmoe.errors import ConfigError

REQUIRED = [
    'model.family is missing; expected "mixtral", "qwen3_moe", "olmoe", "qwen2_moe", "glm4_moe", '
    '"gpt_oss", "deepseek", "deepseek_v2" or "deepseek_v3"',
    "model.vocab_size is missing; expected an integer >= 2",
    "model.hidden is missing; expected an integer >= 1",
    "model.layers is missing; expected an integer >= 1",
    "model.heads is missing; expected an integer >= 1",
    "model.kv_heads is missing; expected an integer >= 1",
    "model.head_dim is missing; expected an integer >= 2",
    "model.experts is missing; expected an integer >= 1",
    "model.top_k is missing; expected an integer >= 1",
    "model.expert_width is missing; expected an integer >= 1",
    "train.steps is missing; expected an integer >= 1",
    "train.global_batch_size is missing; expected an integer >= 1",
    "train.sequence_length is missing; expected an integer >= 1",
    "data.paths is missing; expected a list of texts, at least 1",
]


def problems_of(sets: list[str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        override(STARTER, sets)
    return caught.value.problems


def test_a_file_with_sets(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(dump_toml(STARTER), encoding="utf-8")
    assert RunConfig.load(path) == STARTER
    sets = ["train.optimizer.lr=1", 'data.paths=["x", "y"]', "cluster.device = cpu", "name='a.b'"]
    assert RunConfig.load(str(path), sets) == STARTER.model_copy(
        update={
            "name": "a.b",
            "train": STARTER.train.model_copy(
                update={"optimizer": STARTER.train.optimizer.model_copy(update={"lr": 1.0})}
            ),
            "data": STARTER.data.model_copy(update={"paths": ["x", "y"]}),
            "cluster": STARTER.cluster.model_copy(update={"device": "cpu"}),
        }
    )


def test_an_integer_is_a_number() -> None:
    lr = override(STARTER, ["train.optimizer.lr=1"]).train.optimizer.lr
    assert (type(lr), lr) == (float, 1.0)


def test_the_last_set_of_a_key_wins() -> None:
    assert override(STARTER, ["train.steps=30", "train.steps=40"]).train.steps == 40


def test_a_set_may_replace_a_table() -> None:
    config = override(STARTER, ["train.loss={z_coef=0.5}", "train.loss.aux_coef=0.25"])
    assert config.train.loss.model_dump() == {
        "aux_coef": 0.25,
        "aux_scope": "sequence",
        "bias_rate": 0.0,
        "chunk_tokens": 0,
        "z_coef": 0.5,
    }


def test_the_given_tree_is_left_alone() -> None:
    tree = STARTER.model_dump()
    parse_run_config(tree, ["train.steps=30"])
    assert tree == STARTER.model_dump()


def test_an_empty_file_lacks_all_that_is_required(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.touch()
    with pytest.raises(ConfigError) as caught:
        load_run_config(path)
    assert caught.value.problems == REQUIRED
    assert str(caught.value).startswith(f"{path}: 14 problems\n  - model.family is missing")


def test_all_kinds_of_problems_in_one_report() -> None:
    tree = STARTER.model_dump()
    tree["model"]["num_expert"] = tree["model"].pop("experts")
    tree["model"]["aux_loss_coef"] = 0.01
    tree["model"]["hidden"] = -4
    tree["model"]["kv_heads"] = 4
    tree["train"]["optimizer"]["lr"] = "1e-4"
    with pytest.raises(ConfigError) as caught:
        parse_run_config(tree, ["train.lr=3", "train.steps", "parallel.residual=direct"])
    assert caught.value.problems == [
        "--set train.steps: expected KEY=VALUE, as in train.steps=10",
        "model.num_expert is no setting; did you mean model.experts?",
        "model.aux_loss_coef is no setting; did you mean train.loss.aux_coef?",
        "train.lr is no setting; did you mean train.optimizer.lr? (--set train.lr=3)",
        "model.hidden = -4; expected an integer >= 1",
        "model.experts is missing; expected an integer >= 1",
        'train.optimizer.lr = "1e-4" is text; expected a number > 0: write it without quotes',
        "model.kv_heads = 4 does not divide model.heads = 6; use 1, 2, 3 or 6",
        'parallel.residual = "direct" sends the residual stream to the next group, but '
        'parallel.groups = 1 has no other group; use "auto" or "local"',
    ]


def test_rules_are_silent_about_values_that_are_wrong_themselves() -> None:
    assert problems_of(["model.experts=many", "model.top_k=9", "parallel=3"]) == [
        'model.experts = "many" is text; expected an integer >= 1 (--set model.experts=many)',
        "parallel = 3 is an integer; expected a table [parallel] (--set parallel=3)",
    ]


def test_a_broken_rule_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(dump_toml(STARTER), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_run_config(path, ["model.top_k=9"])
    assert str(caught.value) == (
        f"{path}: model.top_k = 9 is more than model.experts = 8; use 1 to 8"
    )


def test_a_model_may_be_named_by_its_file(tmp_path: Path) -> None:
    other = STARTER.model.model_copy(update={"layers": 6})
    (tmp_path / "models").mkdir()
    model = tmp_path / "models" / "m.toml"
    model.write_text(dump_toml(ModelFile(model=other)), encoding="utf-8")
    text = dump_toml(STARTER)
    run = tmp_path / "run.toml"
    run.write_text(text, encoding="utf-8")
    assert load_run_config(run, [f"model={model}", "model.heads=12"]).model == other.model_copy(
        update={"heads": 12}
    )
    assert override(STARTER, ["model.heads=12", f"model={model}"]).model == other
    head, _, rest = text.partition("[model]")
    run.write_text('model = "models/m.toml"\n' + head + rest[rest.index("[parallel]") :])
    assert load_run_config(run, ["model.heads=12"]).model.heads == 12
    with pytest.raises(ConfigError, match=r'^model = "nowhere.toml": there is no file nowhere'):
        override(STARTER, ["model=nowhere.toml"])
