import math

import torch

from disagmoe.config.model import ModelConfig
from disagmoe.model.rope import Rope


def rope(length: int, dtype: torch.dtype = torch.float64) -> Rope:
    config = ModelConfig(
        family="mixtral",
        vocab_size=2,
        hidden=4,
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=4,
        experts=1,
        top_k=1,
        expert_width=1,
        rope_theta=100.0,
    )
    return Rope.of(config, length, dtype)


def test_pairs_turn_by_position_times_frequency() -> None:
    x = torch.tensor([1.0, 2.0, 0.0, 0.0], dtype=torch.float64).expand(1, 1, 4, 4)
    turned = rope(4).rotate(x)[0, 0, 3]
    a, b = 3.0, 3.0 / 10.0  # theta^0 and theta^(-2/4)
    expected = [math.cos(a), 2 * math.cos(b), math.sin(a), 2 * math.sin(b)]
    torch.testing.assert_close(turned, torch.tensor(expected, dtype=torch.float64))


def test_scores_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(2, 4, dtype=torch.float64).unbind()
    tables = rope(9)
    q_S, k_S = (tables.rotate(v.expand(1, 1, 9, 4))[0, 0] for v in (q, k))
    scores = q_S @ k_S.T
    torch.testing.assert_close(scores[2, 0], scores[8, 6])
    torch.testing.assert_close(scores[1, 4], scores[4, 7])


def test_shorter_sequences_use_the_first_positions() -> None:
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    assert torch.equal(rope(5).rotate(x), rope(64).rotate(x))


def test_angles_are_exact_before_the_cast() -> None:
    exact = rope(300, torch.float32)
    assert torch.equal(rope(300, torch.bfloat16).cos_SC, exact.cos_SC.bfloat16())
