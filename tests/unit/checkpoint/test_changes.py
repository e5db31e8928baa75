from pathlib import Path

import pytest

from disagmoe.checkpoint.changes import changes, check_same_model, frozen, thawed
from disagmoe.config.load import override
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
ASKED = override(RunConfig.load(ROOT / "configs/tiny.toml"), ["train.steps=20"])
"""Costs, depth, precision and residual are left open."""
FOUND = ["parallel.profile=off", "parallel.costs.rows=0.125", "parallel.in_flight=2"]
SAVED = override(resolve(ASKED, cuda=False), FOUND)
"""What a run of it has found and saved."""


def test_the_same_config_runs_the_same_programs() -> None:
    assert resolve(frozen(ASKED, SAVED), cuda=False) == SAVED
    assert frozen(SAVED, SAVED) == SAVED


def test_what_is_left_open_again_freezes_to_the_same() -> None:
    assert resolve(frozen(thawed(SAVED), SAVED), cuda=False) == SAVED
    other = override(thawed(SAVED), ["parallel.groups=2"])
    assert resolve(frozen(other, SAVED), cuda=False).parallel.residual == "fused"


def test_more_steps_keep_the_programs() -> None:
    longer = resolve(frozen(override(ASKED, ["train.steps=40"]), SAVED), cuda=False)
    assert changes(longer, SAVED) == ["train.steps: 20 -> 40"]


def test_shares_that_were_found_are_kept() -> None:
    two = override(ASKED, ["parallel.attention_workers=2"])
    saved = override(resolve(two, cuda=False), [*FOUND, "parallel.attention_shares=[3, 1]"])
    assert frozen(two, saved).parallel == saved.parallel


@pytest.mark.parametrize(
    "change",
    ["parallel.groups=2", "train.global_batch_size=8", "parallel.schedule=serial", "model.top_k=1"],
)
def test_other_work_is_measured_anew(change: str) -> None:
    asked = override(ASKED, [change])
    assert frozen(asked, SAVED).parallel == asked.parallel


def test_what_is_asked_for_is_kept() -> None:
    asked = override(ASKED, ["parallel.costs.rows=0.7", "parallel.in_flight=3"])
    assert frozen(asked, SAVED).parallel.costs == asked.parallel.costs
    assert frozen(asked, SAVED).parallel.in_flight == 3
    assert frozen(override(ASKED, ["train.precision=fp64"]), SAVED).train.precision == "fp64"


def test_a_precision_that_is_left_open_is_the_saved_one() -> None:
    saved = override(SAVED, ["train.precision=bf16"])
    assert frozen(ASKED, saved).train.precision == "bf16"


def test_every_change_is_said() -> None:
    changed = override(SAVED, ["train.seed=3", 'data.paths=["x"]', "train.optimizer.lr=0.5"])
    assert changes(changed, SAVED) == [
        "train.seed: 0 -> 3",
        "train.optimizer.lr: 0.001 -> 0.5",
        'data.paths: ["runs/tiny/data"] -> ["x"]',
    ]
    assert changes(SAVED, SAVED) == []
    measured = override(SAVED, ["parallel.costs.rows=0.5", "parallel.costs.head=0.5"])
    assert changes(measured, SAVED) == ["parallel.costs: others than before"]


def test_another_model_is_refused_with_all_that_differs() -> None:
    other = override(SAVED, ["model.hidden=64", "model.experts=8", "model.rope_theta=5.0"])
    with pytest.raises(ConfigError) as raised:
        check_same_model(other, SAVED, "/run/step-3")
    assert str(raised.value) == (
        "the checkpoint /run/step-3 is of another model: model.hidden = 32 there, 64 here; "
        "model.experts = 7 there, 8 here; leave --config out to go on with the checkpoint's own "
        "config, or name another checkpoint"
    )
    check_same_model(override(SAVED, ["model.rope_theta=5.0"]), SAVED, "x")
