import pytest

from disagmoe.config.costs import CostsConfig, ring_depth
from disagmoe.config.load import override
from disagmoe.config.starter import STARTER
from disagmoe.errors import ConfigError
from disagmoe.schedule.costs import OpCosts


def depth(groups=1, residual="local", *, colocated=False, **costs):
    return ring_depth(CostsConfig(**costs), groups=groups, residual=residual, colocated=colocated)


def test_a_config_has_the_costs_of_the_builders():
    assert CostsConfig().model_dump() == OpCosts().to_dict()


def test_the_ring_is_half_as_full_again_as_it_must_be():
    # 1.5 * 2p (1 + Tc/T)
    assert [depth(groups) for groups in (1, 2, 4, 8)] == [5, 9, 18, 36]
    assert depth(rows=0.0, outputs=0.0) == 3
    assert depth(rows=1.0, outputs=1.0) == 6
    assert depth(rows=1.0, outputs=1.0, experts_fwd=2.0) == 5
    assert depth(2, "fused") == 9
    assert depth(2, "direct") == 11  # 1.5 * 4 * 1.75


def test_a_slow_network_is_kept_busy_by_few():
    assert depth(rows=4.0, outputs=4.0) == 4
    assert depth(rows=1e6, outputs=1e6) == 4


def test_workers_of_both_sides_need_fewer():
    assert depth(colocated=True) == 3
    assert depth(4, colocated=True) == 9
    assert depth(rows=0.0, outputs=0.0, colocated=True) == 2  # a pair


def test_work_that_takes_no_time_has_a_depth_too():
    assert depth(3, attn_fwd=0.0, experts_fwd=0.0, rows=0.0, outputs=0.0) == 5


def test_names_of_costs_are_checked():
    with pytest.raises(ConfigError, match=r"experts_forward.*did you mean.*experts_fwd"):
        override(STARTER, ["parallel.costs.experts_forward=2"])
    with pytest.raises(ConfigError, match=r"parallel\.costs\.rows"):
        override(STARTER, ["parallel.costs.rows=-1"])
