import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.config.shares import apportion
from disagmoe.costs.routing import loads, popularity
from tests.unit.costs.public_models import MODELS

QWEN, V3, MIXTRAL = (MODELS[name] for name in ("qwen3-235b-a22b", "deepseek-v3", "mixtral-8x7b"))


def distinct(model, parts):
    return sum(loads(model, apportion(model.experts, [1.0] * parts)).rows)


# copies of a token by EP size (workers) and by nodes
@pytest.mark.parametrize(
    ("name", "workers", "nodes"),
    [
        ("deepseek-moe-16b", (4.54, 5.32, 5.76, 6.00), (1.98, 3.35, 4.54, 5.32)),
        ("deepseek-v2", (4.46, 5.21, 5.63, 5.86), (1.97, 3.00, 3.00)),
        ("deepseek-v3", (5.29, 6.52, 7.27, 7.68), (1.99, 3.61, 4.00)),
        ("qwen3-235b-a22b", (5.34, 6.60, 7.36, 7.78), (1.99, 3.63, 5.34, 6.60)),
        ("gpt-oss-120b", (3.34, 3.68, 3.86, 3.95), (1.88, 2.75, 3.34, 3.68)),
        ("mixtral-8x7b", (2.00,), (1.57, 1.86, 2.00)),
    ],
)
def test_expected_copies(name, workers, nodes):
    model = MODELS[name]
    open_routing = model.model_copy(update={"top_groups": 1, "expert_groups": 1})
    for size, expected in zip((8, 16, 32, 64), workers, strict=False):
        assert distinct(open_routing, size) == pytest.approx(expected, abs=0.012)
    for size, expected in zip((2, 4, 8, 16), nodes, strict=False):
        assert distinct(model, size) == pytest.approx(expected, abs=0.012)


def test_limited_routing_reaches_as_many_nodes_as_its_groups_have():
    """8 groups of experts, of which a token visits 4: over 16 nodes a group has two of them."""
    assert distinct(V3, 8) == pytest.approx(4)
    assert distinct(V3, 16) == pytest.approx(min(8, 6.6), rel=0.02)


def test_draws_agree_with_the_formula():
    rng = random.Random(1)
    parts = apportion(128, [1.0] * 10)
    owner = [part for part, size in enumerate(parts) for _ in range(size)]
    draws = [{owner[expert] for expert in rng.sample(range(128), 8)} for _ in range(20000)]
    expected = loads(QWEN, parts).rows
    for part, chance in enumerate(expected):
        assert sum(part in hit for hit in draws) / 20000 == pytest.approx(chance, abs=0.012)


@given(st.integers(1, 20), st.floats(0, 3), st.integers(0, 5))
def test_choices_add_up_however_skewed(workers, skew, layer):
    chances = popularity(QWEN, skew, layer)
    assert max(chances) <= 1 + 1e-12
    assert sum(chances) == pytest.approx(8)
    found = loads(QWEN, apportion(128, [1.0] * workers), chances)
    assert sum(found.choices) == pytest.approx(8)
    assert all(0 < row <= 1 + 1e-12 for row in found.rows)
    assert all(
        row <= chosen * (1 + 1e-9) for row, chosen in zip(found.rows, found.choices, strict=True)
    )


def test_no_skew_is_balanced():
    parts = apportion(128, [1.0] * 16)
    balanced, uniform = loads(QWEN, parts), loads(QWEN, parts, popularity(QWEN, 0.0, 3))
    assert balanced.rows == pytest.approx(uniform.rows)
    assert balanced.choices == (0.5,) * 16


def test_layers_are_skewed_apart():
    one, other = popularity(QWEN, 1.2, 0), popularity(QWEN, 1.2, 1)
    assert one != other
    assert sorted(one) == sorted(other)
    assert popularity(QWEN, 1.2, 0) == one


def test_one_worker_has_all_and_a_whole_part_of_the_experts_is_surely_hit():
    assert loads(MIXTRAL, [8]).rows == (1.0,)
    assert loads(MIXTRAL, [7, 1]).rows == (1.0, 0.25)
