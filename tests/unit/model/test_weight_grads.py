import pytest
import torch
import torch.nn.functional as F

from disagmoe.model.experts import Backend, experts_forward, experts_products
from disagmoe.model.params import ExpertParams
from disagmoe.model.weight_grads import input_grads, weight_grads

needs_grouped = pytest.mark.skipif(
    not hasattr(F, "grouped_mm"), reason="torch.nn.functional.grouped_mm needs torch >= 2.10"
)


def tensors(rows: int, experts: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    shapes = ((experts, 16, 16), (experts, 16, 8), (rows, 16), (2 * rows,), (rows, 16))
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


@pytest.mark.parametrize(
    ("dtype", "backend"),
    [
        (torch.float64, "loop"),
        (torch.float32, "loop"),
        pytest.param(torch.float32, "grouped", marks=needs_grouped),
        pytest.param(torch.bfloat16, "grouped", marks=needs_grouped),
    ],
)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_two_parts_have_the_bits_of_the_whole(
    rows: int, dtype: torch.dtype, backend: Backend
) -> None:
    gate_up, down, x, gates, dout = tensors(rows, 3, dtype)
    gates = gates.to(torch.promote_types(dtype, torch.float32))
    leaves = [tensor.requires_grad_() for tensor in (x, gates, gate_up, down)]
    params = ExpertParams(gate_up, down)
    row_P = torch.arange(rows).repeat_interleave(2)
    expert_P = torch.tensor([0, 2]).repeat(rows)  # expert 1 is idle
    whole = experts_forward(params, x, row_P, expert_P, gates, backend=backend)
    expected = torch.autograd.grad(whole, leaves, dout)

    out, products = experts_products(params, x, row_P, expert_P, gates, backend=backend)
    assert torch.equal(out, whole)
    inputs, pending = input_grads(out, [x, gates], products, dout)
    found = [*inputs, *weight_grads(pending)]
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_the_first_part_leaves_the_weights_alone() -> None:
    gate_up, down, x, gates, dout = tensors(4, 3, torch.float64)
    for tensor in (gate_up, down, x, gates):
        tensor.requires_grad_()
    met: list[str] = []
    gate_up.register_hook(lambda _: met.append("gate_up"))
    down.register_hook(lambda _: met.append("down"))
    row_P, expert_P = torch.arange(4).repeat_interleave(2), torch.tensor([0, 1] * 4)
    out, products = experts_products(ExpertParams(gate_up, down), x, row_P, expert_P, gates)
    _, pending = input_grads(out, [x, gates], products, dout)
    assert met == []
    weight_grads(pending)
    assert met == ["gate_up", "down"]
