import pytest
import torch
import torch.nn.functional as F

from disagmoe.model.activation import (
    clamped_swiglu,
    clamped_swiglu_grad,
    swiglu,
    swiglu_grad,
)


def test_the_clamped_swiglu_of_gpt_oss() -> None:
    """Case H3: pairs (1, 2), (-3, .5) and (9, -9) of gate and up."""
    gate_up = torch.tensor([[1.0, -3.0, 9.0, 2.0, 0.5, -9.0]])
    expected = torch.tensor([[2.537387, -0.027107, -41.999719]])
    torch.testing.assert_close(clamped_swiglu(gate_up), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["plain", "clamped"])
def test_written_gradients_are_those_of_the_formula(kind: str) -> None:
    forward, backward = {
        "plain": (swiglu, swiglu_grad),
        "clamped": (clamped_swiglu, clamped_swiglu_grad),
    }[kind]
    generator = torch.Generator().manual_seed(0)
    gate_up = 6 * torch.randn(20, 10, generator=generator, dtype=torch.float64)
    gate_up.requires_grad_()
    gate, up = gate_up.chunk(2, dim=-1)
    if kind == "plain":
        act = F.silu(gate) * up
    else:
        bounded = gate.clamp(max=7)
        act = (up.clamp(-7, 7) + 1) * bounded * torch.sigmoid(1.702 * bounded)
    torch.testing.assert_close(forward(gate_up.detach()), act)
    dact = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    (expected,) = torch.autograd.grad(act, gate_up, dact)
    torch.testing.assert_close(backward(gate_up.detach(), dact.clone()), expected)
