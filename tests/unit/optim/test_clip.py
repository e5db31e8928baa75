"""One norm over all gradients, each counted once, and the clip factor."""

import math

import pytest
import torch

from disagmoe.optim.clip import all_finite, clip_scale, nonfinite_names, squared_norm


def with_square(total: float, count: int) -> torch.Tensor:
    return torch.full((count,), math.sqrt(total / count))


def test_one_norm_over_both_sides_counts_replicas_once() -> None:
    """Two expert workers own 20 and 100; dense gradients of 25 are replicated on two workers."""
    owned = [
        squared_norm({"experts.0": with_square(20, 5)}),
        squared_norm({"experts.1": with_square(100, 4)}),
        squared_norm({"attention": with_square(16, 4), "norm": with_square(9, 1)}),
    ]
    norm = math.sqrt(sum(owned))
    assert norm == pytest.approx(12.0416, abs=5e-5)
    assert clip_scale(norm, 1.0) == pytest.approx(0.08305, abs=5e-6)


@pytest.mark.parametrize(
    ("norm", "max_norm", "expected"),
    [(4.0, 1.0, 0.25), (1.0, 1.0, 1.0), (0.5, 1.0, 1.0), (0.0, 1.0, 1.0), (9.0, 0.0, 1.0)],
)
def test_clip_scale(norm: float, max_norm: float, expected: float) -> None:
    assert clip_scale(norm, max_norm) == expected


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_step_that_is_not_finite_is_not_scaled(norm: float) -> None:
    with pytest.raises(ValueError, match=rf"gradient norm is {norm}; .* must be skipped"):
        clip_scale(norm, 1.0)


def test_squares_are_added_in_fp64() -> None:
    """In fp32 the square of 1e20 overflows, and 1 is lost beside 1e8."""
    assert squared_norm({"a": torch.tensor([1e20])}) == pytest.approx(1e40, rel=1e-6)
    assert squared_norm({"a": torch.tensor([1e4]), "b": torch.ones(3)}) == 1e8 + 3
    assert squared_norm({"a": torch.ones(2**24 + 1, dtype=torch.bfloat16)}) == 2**24 + 1


def test_order_of_names_not_of_insertion() -> None:
    values = {name: torch.tensor([10.0 ** (-i)]) for i, name in enumerate("dbeca")}
    backwards = dict(reversed(values.items()))
    assert squared_norm(values) == squared_norm(backwards)


def test_threads_do_not_change_the_bits() -> None:
    grads = {"w": torch.randn(200_003, generator=torch.Generator().manual_seed(0))}
    before = torch.get_num_threads()
    norms = set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        norms.add(squared_norm(grads))
    torch.set_num_threads(before)
    assert len(norms) == 1


def test_no_gradients_have_norm_zero() -> None:
    assert squared_norm({}) == 0.0
    assert squared_norm({"a": torch.empty(0)}) == 0.0


def test_non_finite_gradients_are_named() -> None:
    grads = {
        "c": torch.tensor([1.0, math.nan]),
        "b": torch.full((4,), 3e38),
        "a": torch.tensor([-math.inf]),
    }
    assert nonfinite_names(grads) == ["a", "c"]
    assert math.isfinite(squared_norm({"b": grads["b"]}))
    assert not math.isfinite(squared_norm(grads))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_element_decides_whether_all_are_finite(dtype: torch.dtype) -> None:
    largest = torch.full((70_000,), torch.finfo(dtype).max, dtype=dtype)  # whose sum is not finite
    assert all_finite(largest)
    assert all_finite(largest[:0])
    for bad in (math.nan, math.inf, -math.inf):
        spoilt = largest.clone()
        spoilt[69_999] = bad
        assert not all_finite(spoilt)
