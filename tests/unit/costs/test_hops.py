"""What uniform routing makes of rows."""

from math import comb

import pytest

from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from disagmoe.config.starter import STARTER
from disagmoe.costs.hops import rows_per_token

EXPERTS, TOP_K = 8, 2


def config(*sets: str) -> RunConfig:
    sizes = [f"model.experts={EXPERTS}", f"model.top_k={TOP_K}", "parallel.expert_workers=4"]
    return override(STARTER, [*sizes, *sets])


def reached(parts: int) -> float:
    """G (1 - C(E - E/G, k) / C(E, k))."""
    return parts * (1 - comb(EXPERTS - EXPERTS // parts, TOP_K) / comb(EXPERTS, TOP_K))


def test_distinct_workers_or_hosts_of_uniform_routing() -> None:
    assert rows_per_token(config()) == pytest.approx({"inter": reached(4)})
    assert rows_per_token(config("parallel.dedupe=none")) == {"inter": TOP_K}
    two_hops = rows_per_token(config("parallel.dedupe=node", "parallel.workers_per_host=2"))
    assert two_hops == pytest.approx({"inter": reached(2), "intra": reached(4)})
    assert reached(2) == pytest.approx(1.571, abs=1e-3)
