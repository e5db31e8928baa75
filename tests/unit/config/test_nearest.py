"""The setting that somebody meant."""

import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from disagmoe.config.catalogue import settings
from disagmoe.config.nearest import ALIASES, nearest
from disagmoe.config.run import RunConfig

KNOWN = settings(RunConfig)

MEANT = {
    # wrong nesting
    "train.lr": "train.optimizer.lr",
    "lr": "train.optimizer.lr",
    "optimizer.lr": "train.optimizer.lr",
    "model.aux_loss_coef": "train.loss.aux_coef",
    "train.weight_decay": "train.optimizer.weight_decay",
    "parallel.precision": "train.precision",
    # words of other systems
    "num_expert": "model.experts",
    "aux_loss_coef": "train.loss.aux_coef",
    "num_hidden_layers": "model.layers",
    "num_attention_heads": "model.heads",
    "num_key_value_heads": "model.kv_heads",
    "num_experts_per_tok": "model.top_k",
    "hidden_size": "model.hidden",
    "model.rms_norm_eps": "model.norm_eps",
    "train.micro_batch_size": "parallel.micro_batch_size",
    # misspelt
    "model.experst": "model.experts",
    "model.topk": "model.top_k",
    "train.sequnce_length": "train.sequence_length",
    "parallel.in-flight": "parallel.in_flight",
    "data.weight": "data.weights",
    "Train.Steps": "train.steps",
}


@pytest.mark.parametrize(("name", "meant"), MEANT.items())
def test_what_was_meant(name: str, meant: str) -> None:
    assert nearest(name, KNOWN) == meant


@pytest.mark.parametrize("name", ["foo", "xyzzy", "model.zq", "", ".", "_"])
def test_no_guess_where_nothing_is_near(name: str) -> None:
    assert nearest(name, KNOWN) is None


def test_no_names_no_guess() -> None:
    assert nearest("num_experts_per_tok", []) is None


def test_aliases_lead_to_settings_and_hide_none() -> None:
    assert set(ALIASES.values()) <= KNOWN.keys()
    assert ALIASES.keys() & {name.rpartition(".")[2] for name in KNOWN} == set()


DROPS = [(name, at) for name in KNOWN for at in range(len(name)) if name[at].isalpha()]


def dropped(name: str, at: int) -> str:
    return name[:at] + name[at + 1 :]


@given(st.sampled_from([(name, at) for name, at in DROPS if at > name.rfind(".")]))
@hypothesis_settings(max_examples=60)
def test_a_dropped_letter_still_finds_the_setting(drop: tuple[str, int]) -> None:
    name, at = drop
    assume(len(name) - name.rfind(".") > 5)
    found = nearest(dropped(name, at), KNOWN)
    assert found is not None
    # drows without its d is rows, and experts_dgrad without it as near as experts_wgrad
    as_near = {found, *(dropped(found, place) for place in range(len(found)))}
    assert dropped(name, at) in as_near
