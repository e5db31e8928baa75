import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from disagmoe.config.model import ModelConfig
from disagmoe.errors import ConfigError
from disagmoe.model.names import global_shapes
from disagmoe.model.partition import (
    attention_tensors,
    end_tensors,
    expert_ranges,
    expert_tensors,
    layer_tensors,
    model_tensors,
)


def config(*, layers: int = 3, experts: int = 5, tied: bool = False) -> ModelConfig:
    return ModelConfig(
        family="qwen3_moe",
        vocab_size=11,
        hidden=8,
        layers=layers,
        heads=2,
        kv_heads=1,
        head_dim=4,
        experts=experts,
        top_k=1,
        expert_width=3,
        tied_embeddings=tied,
    )


def test_larger_shares_come_first() -> None:
    assert expert_ranges(7, [1.0, 1.0, 1.0]) == (range(3), range(3, 5), range(5, 7))
    assert expert_ranges(7, [1.0, 5.0, 1.0]) == (range(1), range(1, 6), range(6, 7))


@given(st.integers(1, 40), st.data())
@settings(derandomize=True)
def test_ranges_cover_all_experts_once(experts: int, data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, experts))
    ranges = expert_ranges(experts, [1.0] * workers)
    assert [expert for part in ranges for expert in part] == list(range(experts))
    assert {len(part) for part in ranges} <= {experts // workers, -(-experts // workers)}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 1.0, 1.0], r"2 experts .* 3 expert workers: \[1, 1, 0\]; use at most 2 workers"),
        ([1.0, 9.0], r"2 experts .* 2 expert workers: \[0, 2\]; .* and less unequal shares"),
    ],
)
def test_a_worker_without_experts_is_refused(weights: list[float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expert_ranges(2, weights)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("groups", "workers"), [(1, 1), (2, 3), (3, 2)])
def test_workers_together_hold_every_parameter(groups: int, workers: int, tied: bool) -> None:
    cfg = config(tied=tied)
    held = []
    for g in range(groups):
        layers = range(g, cfg.layers, groups)
        held += attention_tensors(cfg, layers, embedding=g == 0, head=g == cfg.layers % groups)
        for experts in expert_ranges(cfg.experts, [1.0] * workers):
            held += expert_tensors(cfg, layers, experts)
    parts = {part.name: part.shape for local in held for part in local.parts}
    held_twice = int(tied and cfg.layers % groups != 0)  # embedding and head lie apart
    assert sum(len(local.parts) for local in held) == len(parts) + held_twice
    assert parts == global_shapes(cfg)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dense", [0, 2])
def test_layers_and_ends_are_the_network(tied: bool, dense: int) -> None:
    cfg = config(tied=tied).model_copy(
        update={"family": "deepseek", "dense_layers": dense, "dense_width": 6, "shared_width": 3}
    )
    apart = [*end_tensors(cfg), *(t for n in range(cfg.layers) for t in layer_tensors(cfg, n))]
    assert len(apart) == len(model_tensors(cfg))
    assert set(apart) == set(model_tensors(cfg))


def test_tied_matrix_is_held_at_both_ends_when_they_are_apart() -> None:
    cfg = config(tied=True)
    last = attention_tensors(cfg, [1], embedding=False, head=True)
    assert [local.name for local in last][-2:] == ["final_norm.weight", "embed.weight"]
    both = attention_tensors(cfg, [0], embedding=True, head=True)
    assert [local.name for local in both].count("embed.weight") == 1


def test_split_and_join_are_inverses_and_split_shares_memory() -> None:
    for local in model_tensors(config()):
        tensor = torch.randn(local.shape)
        parts = local.split(tensor)
        assert {name: tuple(part.shape) for name, part in parts.items()} == {
            part.name: part.shape for part in local.parts
        }
        assert torch.equal(local.join(parts), tensor)
        for part in parts.values():
            part.zero_()
        assert not tensor.any()


def test_gate_comes_before_up_in_the_stack() -> None:
    gate_up, down = expert_tensors(config(), [1], range(2, 4))
    assert (gate_up.name, gate_up.shape) == ("layers.1.experts.gate_up", (2, 6, 8))
    assert (down.name, down.shape) == ("layers.1.experts.down", (2, 8, 3))
    stack = torch.arange(2 * 6 * 8).view(2, 6, 8)
    parts = gate_up.split(stack)
    assert torch.equal(parts["layers.1.experts.3.gate.weight"], stack[1, :3])
    assert torch.equal(parts["layers.1.experts.3.up.weight"], stack[1, 3:])
