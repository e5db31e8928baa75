import json

import pytest
import torch

from disagmoe.config.train import OptimizerConfig
from disagmoe.errors import ConfigError
from disagmoe.optim.adamw import Optimizer, Rule
from disagmoe.optim.groups import check_groups, rule_of
from tests.unit.runtime.tiny import (
    batch_of,
    step,
    store_of,
    threads,
    tiny,
    values_of,
)

GROUPS = {
    "train__optimizer__groups": '["layers.*.router.weight", "layers.1.experts.*", "*norm*"]',
    "train__optimizer__group_lr": "[0.5, 2.0, 0.0]",
    "train__optimizer__group_weight_decay": "[0.0, 0.25, 0.5]",
}


def test_the_first_group_that_fits_counts() -> None:
    config = tiny(**GROUPS).train.optimizer
    assert rule_of("layers.0.router.weight", 2, config) == Rule(0.5, 0.0)
    assert rule_of("layers.1.experts.3.up.weight", 2, config) == Rule(2.0, 0.25)
    assert rule_of("layers.0.experts.3.up.weight", 2, config) == Rule(1.0, 0.1)
    assert rule_of("final_norm.weight", 1, config) == Rule(0.0, 0.5)
    alone = OptimizerConfig(groups=["*"], group_lr=[3.0])
    assert rule_of("final_norm.weight", 1, alone) == Rule(3.0, 0.0)
    assert rule_of("head.weight", 2, alone) == Rule(3.0, 0.1)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ('["*", "layers.0.*"]', r"groups\[1\] = \"layers.0.\*\" fits no parameter that an earlier"),
        ('["*.rooter.*"]', r"groups\[0\] = \"\*.rooter.\*\" fits no parameter"),
        ('["layers.0.experts.1.*"]', r"experts.0.gate.weight to .* are updated as one, but"),
    ],
)
def test_groups_that_mean_nothing_are_refused(groups: str, message: str) -> None:
    optimizer = OptimizerConfig(groups=json.loads(groups), group_lr=[1.0])
    with pytest.raises(ConfigError, match=message):
        check_groups(tiny().model, optimizer)


def test_zero_gradients_show_decay_alone() -> None:
    """Matrices shrink by lr x decay, vectors stay, as bug reports of other systems ask."""
    values = {"a.weight": torch.ones(2, 2), "a.norm.weight": torch.ones(2), "b.bias": torch.ones(2)}
    optimizer = Optimizer(values, OptimizerConfig(weight_decay=0.1))
    optimizer.step({name: torch.zeros_like(value) for name, value in values.items()}, 0.1)
    assert torch.allclose(values["a.weight"], torch.full((2, 2), 0.99))
    assert torch.equal(values["a.norm.weight"], torch.ones(2))
    assert torch.equal(values["b.bias"], torch.ones(2))


@pytest.mark.parametrize(
    "layout",
    [
        {"parallel__attention_workers": 2, "parallel__expert_workers": 3},
        {"parallel__groups": 2, "parallel__rings": 2},
    ],
    ids=["M2 N3", "p2 R2"],
)
def test_groups_are_exact_in_every_layout(layout: dict[str, object]) -> None:
    batch = batch_of(tiny())
    expected = None
    for sets in ({}, layout):
        config = tiny(**GROUPS, **sets)
        with threads(config, [batch]) as run:
            before = {n: v for values in values_of(run).values() for n, v in values.items()}
            after = store_of(config, step(run))
        assert torch.equal(after["final_norm.weight"], before["final_norm.weight"])
        if expected is None:
            expected = after
        else:
            for name, value in after.items():
                torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-12)
