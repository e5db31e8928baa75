"""Rows and bytes of a run beside what uniform routing would make of them."""

import pytest

from disagmoe.api.hops import HopFigures, hop_figures
from disagmoe.config.load import override
from disagmoe.config.starter import STARTER
from disagmoe.costs.hops import rows_per_token
from tests.unit.api.runs import step


def test_figures_are_medians_beside_what_is_expected() -> None:
    steps = [step(number) for number in range(3)]  # 100 tokens each
    config = override(STARTER, ["model.layers=3"])
    assert hop_figures(steps, config) == {
        "inter": HopFigures(
            rows=151,
            exact_rows=151,
            expected_rows=pytest.approx(100 * 3 * rows_per_token(config)["inter"]),
            nbytes=64,
        )
    }
    assert hop_figures(steps, None)["inter"].expected_rows is None
    assert hop_figures([], config) == {}
