import torch

from disagmoe.model.norm import rms_norm


def test_value_by_hand() -> None:
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    weight = torch.tensor([2.0, 10.0], dtype=torch.float64)
    expected = torch.tensor([[6.0, 40.0]], dtype=torch.float64) / (12.5 + 0.5) ** 0.5
    torch.testing.assert_close(rms_norm(x, weight, 0.5), expected)


def test_bf16_is_rounded_before_the_weight() -> None:
    x = torch.randn(64, 48, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = torch.rand(48, generator=torch.Generator().manual_seed(1)).bfloat16()
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    out = rms_norm(x, weight, 1e-6)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, weight * normed.bfloat16())


def test_gradients_match_finite_differences() -> None:
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: rms_norm(a, b, 1e-3), (x, weight))
