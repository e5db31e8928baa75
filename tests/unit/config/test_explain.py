"""Settings in words."""

import re

import pytest
from pydantic.fields import FieldInfo

from disagmoe.config.catalogue import legal_values, settings, tables
from disagmoe.config.explain import explain, markdown
from disagmoe.config.run import RunConfig
from disagmoe.config.starter import STARTER, starter_toml
from disagmoe.errors import ConfigError


def test_one_setting_with_its_rules() -> None:
    assert explain("model.experts") == (
        "model.experts\n"
        "    Experts per layer; need not divide by the number of expert workers.\n"
        "    legal:   an integer >= 1\n"
        "    default: none, required\n"
        "    rule:    `model.top_k` is at most `model.experts`.\n"
        "    rule:    `parallel.expert_workers` is at most `model.experts`.\n"
        "    rule:    `parallel.expert_shares` give each expert worker at least one of\n"
        "    `model.experts`.\n"
    )


def test_a_warning_is_told_apart_from_a_rule() -> None:
    assert "    rule:    `model.top_k` is at most" in explain("model.top_k")
    assert "    warning: With `model.top_k` 1 and" in explain("model.top_k")


def test_one_table() -> None:
    assert explain("train.eval") == (
        "[train.eval]\n"
        "Loss on held-out sequences.\n"
        "\n"
        "train.eval.every\n"
        "    Evaluate each time this many steps are done, and at the end; 0 never\n"
        "    evaluates.\n"
        "    legal:   an integer >= 0\n"
        "    default: 0\n"
        "\n"
        "train.eval.sequences\n"
        "    Held-out sequences per evaluation; taken from the end of the data and\n"
        "    never trained on.\n"
        "    legal:   an integer >= 1\n"
        "    default: 64\n"
    )


def test_a_table_with_those_below_it() -> None:
    headings = [line for line in explain("train").splitlines() if line.startswith("[")]
    assert headings == [
        "[train]",
        "[train.optimizer]",
        "[train.lr_schedule]",
        "[train.loss]",
        "[train.eval]",
    ]


def test_everything_within_80_columns() -> None:
    text = explain()
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert set(settings(RunConfig)) <= set(text.splitlines())


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("train.lr", "'train.lr' is no setting; did you mean train.optimizer.lr?"),
        ("optimizer", "'optimizer' is no setting; did you mean train.optimizer?"),
        ("trian", "'trian' is no setting; did you mean train?"),
        ("xyzzy", "'xyzzy' is no setting; leave KEY out to list all"),
        ("", "'' is no setting; leave KEY out to list all"),
    ],
)
def test_an_unknown_key(key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        explain(key)


def test_markdown_has_each_setting_once_and_all_cells() -> None:
    rows = [line for line in markdown().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(settings(RunConfig))
    assert {row.count("|") for row in rows} == {5}


def test_tables_come_parents_first() -> None:
    assert [table.name for table in tables(RunConfig)] == [
        "",
        "model",
        "parallel",
        "parallel.costs",
        "train",
        "train.optimizer",
        "train.lr_schedule",
        "train.loss",
        "train.eval",
        "data",
        "cluster",
        "cluster.attention",
        "cluster.expert",
        "checkpoint",
        "trace",
    ]


def test_a_type_without_words_is_refused() -> None:
    with pytest.raises(TypeError, match="no words for a setting of type <class 'complex'>"):
        legal_values(FieldInfo(annotation=complex))


def test_the_starter_says_where_it_lies_and_how_to_run_it() -> None:
    text = starter_toml("my/run.toml")
    assert "#   disagmoe train --config my/run.toml\n" in text
    assert text.count("\n# seed = 0\n") == 1
    assert f"\nsteps = {STARTER.train.steps}\n" in text
