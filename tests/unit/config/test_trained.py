import pytest

from disagmoe.config.load import override
from disagmoe.config.starter import STARTER
from disagmoe.config.trained import only_planned, refuse_only_planned
from disagmoe.errors import ConfigError
from disagmoe.schedule.from_config import compile_for, programs_for

GLM = (
    'model.family = "glm4_moe" can be planned and simulated, but not trained yet; use "deepseek", '
    '"deepseek_v2", "deepseek_v3", "gpt_oss", "mixtral", "olmoe", "qwen2_moe" or "qwen3_moe"'
)


def test_what_a_run_can_execute_is_left_alone():
    assert only_planned(STARTER) == []
    refuse_only_planned(override(STARTER, ["model.family=mixtral"]))


def test_a_family_that_is_not_trained_is_planned_and_not_run():
    config = override(STARTER, ["model.family=glm4_moe"])
    assert only_planned(config) == [GLM]
    assert programs_for(config).spec.layout.layers == 4
    with pytest.raises(ConfigError) as caught:
        compile_for(config)
    assert str(caught.value) == GLM


def test_dense_layers_do_not_pass_the_ring():
    dense = ["model.family=deepseek", "model.dense_layers=1", "model.dense_width=64"]
    assert programs_for(override(STARTER, dense)).spec.layout.layers == 3


def test_what_the_wire_cannot_do_yet_is_simulated_only():
    config = override(STARTER, ["parallel.dispatch=fp8"])
    assert only_planned(config) == [
        'parallel.dispatch = "fp8" can be simulated, but not run yet; use "same"',
    ]
