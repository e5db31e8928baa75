"""AdamW against its formula, decay targets, master weights, state in and out."""

import math

import pytest
import torch

from disagmoe.config.train import OptimizerConfig
from disagmoe.optim.adamw import Optimizer, ParameterState, decays

CONFIG = OptimizerConfig(lr=1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
SHAPES = {
    "embedding.weight": (11, 3),
    "layers.0.attention_norm.weight": (3,),
    "layers.0.router.weight": (4, 3),
    "layers.0.experts.w1": (4, 3, 5),
    "layers.0.experts.w1_bias": (4, 5),
    "layers.0.q_norm": (2, 3),
}
MATRICES = {"embedding.weight", "layers.0.router.weight", "layers.0.experts.w1"}


def random_tensors(seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for name, shape in SHAPES.items()
    }


def adamw_by_hand(
    weight: float, grads: list[float], lrs: list[float], decay: float
) -> tuple[float, float, float]:
    """One weight after all steps, by the formula of the paper, in Python floats."""
    m = v = 0.0
    for t, (g, lr) in enumerate(zip(grads, lrs, strict=True), start=1):
        m = 0.9 * m + 0.1 * g
        v = 0.95 * v + 0.05 * g * g
        weight -= lr * decay * weight
        weight -= lr * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.95**t)) + 1e-8)
    return weight, m, v


def test_steps_equal_the_formula() -> None:
    params = random_tensors(0, torch.float64)
    before = {name: param.clone() for name, param in params.items()}
    optimizer = Optimizer(params, CONFIG)
    lrs, scales = [1e-2, 7e-3, 0.0, 3e-3], [1.0, 0.25, 1.0, 0.5]
    grads = [random_tensors(seed, torch.float64) for seed in range(1, 5)]
    for grad, lr, scale in zip(grads, lrs, scales, strict=True):
        optimizer.step({name: g.clone() for name, g in grad.items()}, lr, scale)
    assert optimizer.step_count == 4
    for name, state in optimizer.states.items():
        decay = 0.1 if name in MATRICES else 0.0
        expected = [
            adamw_by_hand(
                before[name].view(-1)[i].item(),
                [g[name].view(-1)[i].item() * s for g, s in zip(grads, scales, strict=True)],
                lrs,
                decay,
            )
            for i in range(before[name].numel())
        ]
        weights, means, squares = torch.tensor(expected, dtype=torch.float64).T
        close = {"rtol": 1e-12, "atol": 1e-15}
        torch.testing.assert_close(params[name].view(-1), weights, **close)
        torch.testing.assert_close(state.exp_avg.view(-1), means, **close)
        torch.testing.assert_close(state.exp_avg_sq.view(-1), squares, **close)


def test_zero_gradients_decay_matrices_alone() -> None:
    params = random_tensors(0, torch.float64)
    before = {name: param.clone() for name, param in params.items()}
    zeros = {name: torch.zeros_like(param) for name, param in params.items()}
    Optimizer(params, CONFIG).step(zeros, lr=0.1)
    for name, param in params.items():
        expected = before[name] * 0.99 if name in MATRICES else before[name]
        torch.testing.assert_close(param, expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize(
    ("name", "ndim", "expected"),
    [
        ("head.weight", 2, True),
        ("router.weight", 2, True),
        ("norm.weight", 1, False),
        ("k_norm.weight", 2, False),
        ("attention.q.bias", 1, False),
        ("experts.w2_bias", 2, False),
        ("attention.sinks", 1, False),
    ],
)
def test_decay_rule(name: str, ndim: int, expected: bool) -> None:
    assert decays(name, ndim) is expected


def test_fp32_parameters_are_their_own_masters() -> None:
    params = random_tensors(0, torch.float32)
    optimizer = Optimizer(params, CONFIG)
    for name, param in params.items():
        assert optimizer.states[name].master.data_ptr() == param.data_ptr()


def test_small_updates_of_bf16_parameters_add_up_in_the_master() -> None:
    """Each update is 1e-3, less than half of bf16's spacing below 1."""
    param = torch.ones(4, dtype=torch.bfloat16)
    optimizer = Optimizer({"w": param}, CONFIG)
    for _ in range(64):
        optimizer.step({"w": torch.full((4,), 1e-3)}, lr=1e-3)
    master = optimizer.states["w"].master
    assert master.dtype == torch.float32
    torch.testing.assert_close(master, torch.full((4,), 1 - 0.064), rtol=0, atol=1e-4)
    assert torch.equal(param, master.bfloat16())
    stalled = torch.ones(4, dtype=torch.bfloat16)
    for _ in range(64):
        stalled -= 1e-3
    assert torch.equal(stalled, torch.ones(4, dtype=torch.bfloat16))


def test_bits_do_not_depend_on_shards() -> None:
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(1003, generator=generator)
    grads = [torch.randn(1003, generator=generator) for _ in range(3)]
    bounds = [(0, 335), (335, 342), (342, 1003)]
    shards = {f"w{i}": whole[start:stop].clone() for i, (start, stop) in enumerate(bounds)}
    one, many = Optimizer({"w": whole}, CONFIG), Optimizer(shards, CONFIG)
    for grad in grads:
        pieces = {f"w{i}": grad[a:b].clone() for i, (a, b) in enumerate(bounds)}
        many.step(pieces, 1e-2, 0.3)
        one.step({"w": grad.clone()}, 1e-2, 0.3)
    assert torch.equal(torch.cat(list(shards.values())), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loaded_state_continues_to_the_bit(dtype: torch.dtype) -> None:
    def grads(seed: int) -> dict[str, torch.Tensor]:
        return random_tensors(seed, torch.float32)

    first = random_tensors(0, dtype)
    optimizer = Optimizer(first, CONFIG)
    optimizer.step(grads(1), 1e-2)
    optimizer.step(grads(2), 1e-2)
    second = random_tensors(9, dtype)
    resumed = Optimizer(second, CONFIG)
    resumed.load(optimizer.states, optimizer.step_count)
    assert all(torch.equal(first[name], second[name]) for name in SHAPES)
    optimizer.step(grads(3), 5e-3)
    resumed.step(grads(3), 5e-3)
    assert resumed.step_count == 3
    for name, state in optimizer.states.items():
        assert torch.equal(first[name], second[name])
        assert torch.equal(state.master, resumed.states[name].master)
        assert torch.equal(state.exp_avg, resumed.states[name].exp_avg)
        assert torch.equal(state.exp_avg_sq, resumed.states[name].exp_avg_sq)


def test_parameters_that_require_gradients_are_updated_in_place() -> None:
    param = torch.nn.Parameter(torch.ones(2, 2))
    Optimizer({"w": param}, CONFIG).step({"w": torch.zeros(2, 2)}, lr=0.1)
    torch.testing.assert_close(param.detach(), torch.full((2, 2), 0.99))
    assert param.grad is None


def test_no_parameters_are_legal() -> None:
    optimizer = Optimizer({}, CONFIG)
    optimizer.step({}, lr=0.1)
    assert optimizer.step_count == 1


def test_gradients_that_do_not_fit_are_refused() -> None:
    optimizer = Optimizer({"a": torch.ones(2), "b": torch.ones(2)}, CONFIG)
    with pytest.raises(
        ValueError, match=r"gradients do not fit .*missing \['b'\], unknown \['c'\]"
    ):
        optimizer.step({"a": torch.ones(2), "c": torch.ones(2)}, lr=0.1)
    with pytest.raises(
        ValueError, match=r"gradient of b is torch\.bfloat16; expected torch\.float32"
    ):
        optimizer.step({"a": torch.ones(2), "b": torch.ones(2, dtype=torch.bfloat16)}, lr=0.1)
    assert optimizer.step_count == 0


def test_state_that_does_not_fit_is_refused() -> None:
    optimizer = Optimizer({"a": torch.ones(2)}, CONFIG)
    wrong = ParameterState(torch.ones(3), torch.ones(3), torch.ones(3))
    with pytest.raises(ValueError, match=r"state of a has shape \(3,\); expected \(2,\)"):
        optimizer.load({"a": wrong}, 1)
    with pytest.raises(ValueError, match=r"states do not fit .*missing \['a'\]"):
        optimizer.load({}, 1)
