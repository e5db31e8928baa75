import torch

from disagmoe.config.model import ModelConfig
from disagmoe.model.init import initial_store, initial_value, seed_of
from disagmoe.model.partition import (
    attention_tensors,
    expert_ranges,
    expert_tensors,
    model_tensors,
)

CONFIG = ModelConfig(
    family="qwen3_moe",
    vocab_size=50,
    hidden=8,
    layers=3,
    heads=2,
    kv_heads=1,
    head_dim=4,
    experts=5,
    top_k=1,
    expert_width=3,
)


def test_every_partition_starts_from_the_same_bits() -> None:
    whole: dict[str, torch.Tensor] = {}
    store = initial_store(model_tensors(CONFIG), seed=7, std=0.02, dtype=torch.float32)
    for local in model_tensors(CONFIG):
        whole |= local.split(store[local.name])
    for workers in (1, 2, 3, 5):
        for rank, experts in enumerate(expert_ranges(CONFIG.experts, [1.0] * workers)):
            locals_ = (
                *attention_tensors(CONFIG, [rank % 3], embedding=True, head=True),
                *expert_tensors(CONFIG, [2, 0], experts),
            )
            share = initial_store(locals_, seed=7, std=0.02, dtype=torch.float32)
            for local in locals_:
                for name, value in local.split(share[local.name]).items():
                    assert torch.equal(value, whole[name]), name


def test_all_precisions_start_from_the_same_numbers() -> None:
    stores = {
        dtype: initial_store(model_tensors(CONFIG), seed=1, std=0.02, dtype=dtype)
        for dtype in (torch.float64, torch.float32, torch.bfloat16)
    }
    for name, value in stores[torch.float32].items():
        assert torch.equal(stores[torch.float64][name], value.double())
        assert torch.equal(stores[torch.bfloat16][name], value.bfloat16())


def test_norms_are_one_and_matrices_normal() -> None:
    assert torch.equal(initial_value("final_norm.weight", (8,), seed=0, std=0.5), torch.ones(8))
    matrix = initial_value("head.weight", (200, 200), seed=0, std=0.5)
    assert abs(matrix.mean()) < 0.01
    assert abs(matrix.std() - 0.5) < 0.01


def test_seed_and_name_both_count() -> None:
    def draw(name: str, seed: int) -> torch.Tensor:
        return initial_value(name, (4, 4), seed=seed, std=1.0)

    assert torch.equal(draw("a.weight", 1), draw("a.weight", 1))
    assert not torch.equal(draw("a.weight", 1), draw("a.weight", 2))
    assert not torch.equal(draw("a.weight", 1), draw("b.weight", 1))


def test_seeds_follow_from_the_run_and_the_name() -> None:
    names = [f"{side}0.{rank}" for side in "AF" for rank in range(50)]
    seeds = {(seed, name): seed_of(seed, name) for seed in (0, 1) for name in names}
    assert len(set(seeds.values())) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds.values())
    assert seeds[0, "A0.0"] == seed_of(0, "A0.0")
