"""`disagmoe invariance` of every family, in one and two groups, with uneven experts."""

from dataclasses import replace
from pathlib import Path

import pytest

from disagmoe.config.load import load_run_config
from disagmoe.runtime.invariance.layouts import Case
from disagmoe.runtime.invariance.run import run_invariance

CONFIGS = Path(__file__).parents[2] / "configs"
ONE = Case(micro_batches=2, attention=2, experts=2, in_flight=2)
CASES = [
    ONE,
    replace(ONE, in_flight=1, schedule="serial"),
    replace(ONE, groups=2, experts=3, expert_shares=(1.0, 2.0, 1.0)),
]
SMALL = ["train.global_batch_size=4", "train.sequence_length=7", "model.hidden=16"]
FAMILIES = ["tiny", "tiny_mixtral", "tiny_olmoe", "tiny_deepseek_v2", "tiny_deepseek_v3"]


@pytest.mark.gloo  # run_invariance listens on loopback for processes, though none is started here
@pytest.mark.parametrize("name", [*FAMILIES, "tiny_gpt_oss"])
def test_layouts_of_a_family_equal_one_process(name: str) -> None:
    config = load_run_config(CONFIGS / f"{name}.toml", SMALL)
    config = config.model_copy(
        update={"model": config.model.model_copy(update={"layers": config.model.dense_layers + 2})}
    )
    verdict = run_invariance(config, CASES, lambda outcome: None)
    assert verdict.as_json()["failed"] == []
    assert verdict.ok
