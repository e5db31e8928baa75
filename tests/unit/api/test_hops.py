"""What uniform routing would make of rows."""

from math import comb

import pytest

from disagmoe.api.hops import HopFigures, hop_figures, rows_per_token
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from disagmoe.config.starter import STARTER
from tests.unit.api.runs import step

LAYERS, EXPERTS, TOP_K = 3, 8, 2


def config(*sets: str) -> RunConfig:
    return override(
        STARTER,
        [
            f"model.layers={LAYERS}",
            f"model.experts={EXPERTS}",
            f"model.top_k={TOP_K}",
            "parallel.expert_workers=4",
            *sets,
        ],
    )


def reached(parts: int) -> float:
    """G (1 - C(E - E/G, k) / C(E, k))."""
    return parts * (1 - comb(EXPERTS - EXPERTS // parts, TOP_K) / comb(EXPERTS, TOP_K))


def test_distinct_workers_or_hosts_of_uniform_routing() -> None:
    assert rows_per_token(config()) == pytest.approx({"inter": LAYERS * reached(4)})
    assert rows_per_token(config("parallel.dedupe=none")) == {"inter": LAYERS * TOP_K}
    two_hops = rows_per_token(config("parallel.dedupe=node", "parallel.workers_per_host=2"))
    assert two_hops == pytest.approx({"inter": LAYERS * reached(2), "intra": LAYERS * reached(4)})
    assert reached(2) == pytest.approx(1.571, abs=1e-3)


def test_figures_are_medians_beside_what_is_expected() -> None:
    steps = [step(number) for number in range(3)]  # 100 tokens each
    assert hop_figures(steps, config()) == {
        "inter": HopFigures(
            rows=151,
            exact_rows=151,
            expected_rows=pytest.approx(100 * LAYERS * reached(4)),
            nbytes=64,
        )
    }
    assert hop_figures([], config()) == {}
