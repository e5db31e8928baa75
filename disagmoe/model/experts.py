"""SwiGLU experts: what an expert worker computes for the rows it received.

Letters: R rows, P pairs of (row, expert), D hidden, E local experts, F expert width.
"""

from dataclasses import dataclass
from typing import Literal, assert_never

import torch
import torch.nn.functional as F

from disagmoe.errors import ConfigError
from disagmoe.model.pairs import PairPlan, combine_pairs, gather_pairs
from disagmoe.model.params import ExpertParams

Backend = Literal["auto", "grouped", "loop"]

_ALIGNMENT_BYTES = 16  # "strides should be multiple of 16 bytes", torch.nn.functional.grouped_mm
_GROUPED_TYPES = {
    "cpu": frozenset({torch.float32, torch.bfloat16, torch.float16}),
    "cuda": frozenset({torch.bfloat16}),
}


@dataclass(frozen=True, slots=True)
class Product:
    """What came of a stack of weights: one output, or one per expert; all its gradient needs."""

    weight: torch.Tensor
    outputs: tuple[torch.Tensor, ...]


def grouped_gemm_fits(weight_ENK: torch.Tensor) -> bool:
    """Whether torch can run one grouped GEMM over the stacked matrices `weight_ENK`.

    It needs torch >= 2.10, fp32 or a 16-bit type on CPU or bf16 on CUDA of compute capability 8.0
    or more, at least two experts (2.13 fails in backward with one), and both N and K rows of a
    multiple of 16 bytes.
    """
    device, size_bytes = weight_ENK.device, weight_ENK.element_size()
    experts, *sides = weight_ENK.shape
    return (
        hasattr(F, "grouped_mm")
        and weight_ENK.dtype in _GROUPED_TYPES.get(device.type, frozenset())
        and (device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0))
        and experts > 1
        and all(side * size_bytes % _ALIGNMENT_BYTES == 0 for side in sides)
    )


def experts_forward(
    params: ExpertParams,
    rows_RD: torch.Tensor,
    row_of_pair_P: torch.Tensor,
    expert_of_pair_P: torch.Tensor,
    gate_P: torch.Tensor,
    *,
    backend: Backend = "auto",
) -> torch.Tensor:
    """Return sum over the pairs of each row of gate * expert(row), [R, D] in the type of the rows.

    `row_of_pair_P` (never decreasing) and `expert_of_pair_P` (local ids) are int64, `gate_P` is
    fp32 (fp64 in fp64 models). A row's terms are summed in pair order in fp32 and rounded once.
    Differentiable in rows, gates and both stacks; zero rows, zero pairs and idle experts give zero
    gradients. `auto` takes the grouped GEMM where it fits, else a loop over experts. Raises
    ConfigError when `grouped` is asked for where it does not fit.
    """
    return experts_products(
        params, rows_RD, row_of_pair_P, expert_of_pair_P, gate_P, backend=backend
    )[0]


def experts_products(
    params: ExpertParams,
    rows_RD: torch.Tensor,
    row_of_pair_P: torch.Tensor,
    expert_of_pair_P: torch.Tensor,
    gate_P: torch.Tensor,
    *,
    backend: Backend = "auto",
) -> tuple[torch.Tensor, tuple[Product, Product]]:
    """The same as `experts_forward`, and the products with both stacks: gate and up, then down."""
    experts = params.down_EDF.shape[0]
    plan = PairPlan.of(row_of_pair_P, expert_of_pair_P, rows=rows_RD.shape[0], experts=experts)
    x_PD = gather_pairs(rows_RD, plan)
    if _use_grouped(params, backend) and x_PD.shape[0] > 0:
        products = _grouped_swiglu(params, x_PD, plan.counts_E)
    else:
        products = _looped_swiglu(params, x_PD, plan.counts_E)
    outputs = products[1].outputs
    y_PD = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return combine_pairs(y_PD, gate_P, plan), products


def _use_grouped(params: ExpertParams, backend: Backend) -> bool:
    fits = grouped_gemm_fits(params.gate_up_EGD) and grouped_gemm_fits(params.down_EDF)
    match backend:
        case "auto":
            return fits
        case "loop":
            return False
        case "grouped":
            if not fits:
                stack = params.gate_up_EGD
                raise ConfigError(
                    f"no grouped GEMM for experts of shape {tuple(stack.shape)}, {stack.dtype} on"
                    f" {stack.device} with torch {torch.__version__}; use backend 'auto' or 'loop'"
                )
            return True
        case _:
            assert_never(backend)


def _grouped_swiglu(
    params: ExpertParams, x_PD: torch.Tensor, counts_E: torch.Tensor
) -> tuple[Product, Product]:
    ends_E = counts_E.cumsum(0).to(torch.int32)
    gate_up_PG = F.grouped_mm(x_PD, params.gate_up_EGD.transpose(1, 2), offs=ends_E)
    y_PD = F.grouped_mm(_swiglu(gate_up_PG), params.down_EDF.transpose(1, 2), offs=ends_E)
    return Product(params.gate_up_EGD, (gate_up_PG,)), Product(params.down_EDF, (y_PD,))


def _looped_swiglu(
    params: ExpertParams, x_PD: torch.Tensor, counts_E: torch.Tensor
) -> tuple[Product, Product]:
    # unbind, not indexing: its gradient is one stack instead of E full-size zero tensors.
    xs = torch.split(x_PD, counts_E.tolist())
    gates_ups = zip(xs, params.gate_up_EGD.unbind(), strict=True)
    gate_up = tuple(F.linear(x, weight) for x, weight in gates_ups)
    downs = zip(gate_up, params.down_EDF.unbind(), strict=True)
    y = tuple(F.linear(_swiglu(gate_up_PG), weight) for gate_up_PG, weight in downs)
    return Product(params.gate_up_EGD, gate_up), Product(params.down_EDF, y)


def _swiglu(gate_up_PG: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up (Shazeer 2020, arXiv:2002.05202)."""
    gate_PF, up_PF = gate_up_PG.chunk(2, dim=-1)
    return F.silu(gate_PF) * up_PF
