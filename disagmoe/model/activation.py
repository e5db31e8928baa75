"""What experts do between their two products, and its gradient written out.

Letters: P pairs, F expert width, G 2F: gate, then up.
"""

import torch
import torch.nn.functional as F

CLAMP_LIMIT = 7.0
CLAMP_ALPHA = 1.702
"""Of GPT-OSS: gpt_oss/torch/model.py of github.com/openai/gpt-oss, `swiglu`."""


def swiglu(gate_up_PG: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up (Shazeer 2020, arXiv:2002.05202)."""
    gate_PF, up_PF = gate_up_PG.chunk(2, dim=-1)
    return F.silu(gate_PF).mul_(up_PF)


def swiglu_grad(gate_up_PG: torch.Tensor, dact_PF: torch.Tensor) -> torch.Tensor:
    """Return the gradient of `gate_up_PG`; `dact_PF` is overwritten."""
    gate_PF, up_PF = gate_up_PG.chunk(2, dim=-1)
    dgate_up_PG = torch.empty_like(gate_up_PG)
    dgate_PF, dup_PF = dgate_up_PG.chunk(2, dim=-1)
    torch.mul(dact_PF, F.silu(gate_PF), out=dup_PF)
    torch.ops.aten.silu_backward.grad_input(dact_PF.mul_(up_PF), gate_PF, grad_input=dgate_PF)
    return dgate_up_PG


def clamped_swiglu(gate_up_PG: torch.Tensor) -> torch.Tensor:
    """Return (u + 1) * g * sigmoid(1.702 g) with g the gate clamped from above and u the up part
    clamped on both sides."""
    gate_PF, up_PF = gate_up_PG.chunk(2, dim=-1)
    gate_PF = gate_PF.clamp(max=CLAMP_LIMIT)
    up_PF = up_PF.clamp(-CLAMP_LIMIT, CLAMP_LIMIT)
    return (up_PF + 1) * (gate_PF * torch.sigmoid(CLAMP_ALPHA * gate_PF))


def clamped_swiglu_grad(gate_up_PG: torch.Tensor, dact_PF: torch.Tensor) -> torch.Tensor:
    """Return the gradient of `gate_up_PG`; beyond the limits it is 0."""
    gate_PF, up_PF = gate_up_PG.chunk(2, dim=-1)
    clamped_PF, lifted_PF = gate_PF.clamp(max=CLAMP_LIMIT), up_PF.clamp(-CLAMP_LIMIT, CLAMP_LIMIT)
    sigmoid_PF = torch.sigmoid(CLAMP_ALPHA * clamped_PF)
    slope_PF = sigmoid_PF * (1 + CLAMP_ALPHA * clamped_PF * (1 - sigmoid_PF))
    dgate_PF = dact_PF * (lifted_PF + 1) * slope_PF * (gate_PF <= CLAMP_LIMIT)
    dup_PF = dact_PF * clamped_PF * sigmoid_PF * (up_PF.abs() <= CLAMP_LIMIT)
    return torch.cat((dgate_PF, dup_PF), dim=-1)
