"""SwiGLU experts: what an expert worker computes for the rows it received.

Letters: R rows, P pairs of (row, expert), D hidden, E local experts, F expert width, G 2F.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, assert_never, cast

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from disagmoe.errors import ConfigError
from disagmoe.model.activation import (
    clamped_swiglu,
    clamped_swiglu_grad,
    swiglu,
    swiglu_grad,
)
from disagmoe.model.device import sum_segments, to_host
from disagmoe.model.pairs import (
    PairPlan,
    combine_grads,
    combine_pairs,
    gather_grads,
    gather_pairs,
)
from disagmoe.model.params import ExpertParams

Backend = Literal["auto", "grouped", "loop"]

_ALIGNMENT_BYTES = 16  # "strides should be multiple of 16 bytes", torch.nn.functional.grouped_mm
_GROUPED_TYPES = {
    "cpu": frozenset({torch.float32, torch.bfloat16, torch.float16}),
    "cuda": frozenset({torch.bfloat16}),
}


@dataclass(frozen=True, slots=True)
class Kept:
    """What the backward needs of a forward; P is in the order of experts."""

    plan: PairPlan
    gate_P: torch.Tensor
    """In the order of pairs."""
    x_PD: torch.Tensor
    gate_up_PG: torch.Tensor
    act_PF: torch.Tensor
    y_PD: torch.Tensor
    grouped: bool


@dataclass(frozen=True, slots=True)
class Pending:
    """Inputs of the experts' matrices and gradients of their outputs: all that the gradients of the
    weights need."""

    counts_E: torch.Tensor
    grouped: bool
    x_PD: torch.Tensor
    dgate_up_PG: torch.Tensor
    act_PF: torch.Tensor
    dy_PD: torch.Tensor


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
    out_RD = _Experts.apply(  # type: ignore[no-untyped-call]
        rows_RD, gate_P, row_of_pair_P, expert_of_pair_P, backend, *params.stacks
    )
    return cast(torch.Tensor, out_RD)


@torch.no_grad()
def experts_apply(
    params: ExpertParams,
    rows_RD: torch.Tensor,
    row_of_pair_P: torch.Tensor,
    expert_of_pair_P: torch.Tensor,
    gate_P: torch.Tensor,
    *,
    backend: Backend = "auto",
) -> tuple[torch.Tensor, Kept]:
    """The same as `experts_forward` without a graph, and what `input_grads` needs.

    The backward is written out, because autograd's has the gradients of weights in transposed
    order (adding those up took as long as the products), cannot add them to a sum in fp32, and
    does not come in two parts.
    """
    experts = params.down_EDF.shape[0]
    plan = PairPlan.of(row_of_pair_P, expert_of_pair_P, rows=rows_RD.shape[0], experts=experts)
    grouped = _use_grouped(params, backend) and len(expert_of_pair_P) > 0
    kept = _kept(params, plan, gate_P, rows_RD, grouped)
    return combine_pairs(kept.y_PD, gate_P, plan), kept


def _kept(
    params: ExpertParams,
    plan: PairPlan,
    gate_P: torch.Tensor,
    rows_RD: torch.Tensor,
    grouped: bool,
) -> Kept:
    x_PD = gather_pairs(rows_RD, plan)
    gate_up_PG = _linear(x_PD, params.gate_up_EGD, plan.counts_E, grouped)
    _add_bias(gate_up_PG, params.gate_up_bias_EG, plan.counts_E)
    clamped = params.gate_up_bias_EG is not None
    act_PF = clamped_swiglu(gate_up_PG) if clamped else swiglu(gate_up_PG)
    y_PD = _linear(act_PF, params.down_EDF, plan.counts_E, grouped)
    _add_bias(y_PD, params.down_bias_ED, plan.counts_E)
    return Kept(plan, gate_P, x_PD, gate_up_PG, act_PF, y_PD, grouped)


def without_activations(kept: Kept, rows_RD: torch.Tensor) -> Kept:
    """Return `kept` with the rows alone, of which `recomputed` makes the rest again."""
    nothing = rows_RD[:0]
    return replace(kept, x_PD=rows_RD, gate_up_PG=nothing, act_PF=nothing, y_PD=nothing)


@torch.no_grad()
def recomputed(params: ExpertParams, kept: Kept) -> Kept:
    """Return what `experts_apply` kept, from what `without_activations` left of it."""
    return _kept(params, kept.plan, kept.gate_P, kept.x_PD, kept.grouped)


@torch.no_grad()
def input_grads(
    params: ExpertParams, kept: Kept, dout_RD: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Pending]:
    """Return the gradients of rows and gates given that of the output, and what `add_weight_grads`
    needs."""
    plan, counts_E = kept.plan, kept.plan.counts_E
    dy_PD, dgate_P = combine_grads(dout_RD, kept.y_PD, kept.gate_P, plan)
    dact_PF = _linear(dy_PD, params.down_EDF.transpose(1, 2), counts_E, kept.grouped)
    clamped = params.gate_up_bias_EG is not None
    grad = clamped_swiglu_grad if clamped else swiglu_grad
    dgate_up_PG = grad(kept.gate_up_PG, dact_PF)
    dx_PD = _linear(dgate_up_PG, params.gate_up_EGD.transpose(1, 2), counts_E, kept.grouped)
    pending = Pending(counts_E, kept.grouped, kept.x_PD, dgate_up_PG, kept.act_PF, dy_PD)
    return gather_grads(dx_PD, plan), dgate_P, pending


@torch.no_grad()
def add_weight_grads(
    pending: Pending,
    gate_up_EGD: torch.Tensor,
    down_EDF: torch.Tensor,
    gate_up_bias_EG: torch.Tensor | None = None,
    down_bias_ED: torch.Tensor | None = None,
) -> None:
    """Add the gradients of all stacks to the given sums, of any type.

    Each expert's is rounded to the type of the activations before, if that has 16 bits.
    """
    counts_E, grouped = pending.counts_E, pending.grouped
    _add_products(gate_up_EGD, pending.dgate_up_PG, pending.x_PD, counts_E, grouped)
    _add_products(down_EDF, pending.dy_PD, pending.act_PF, counts_E, grouped)
    _add_sums(gate_up_bias_EG, pending.dgate_up_PG, counts_E)
    _add_sums(down_bias_ED, pending.dy_PD, counts_E)


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows_RD: torch.Tensor,
        gate_P: torch.Tensor,
        row_of_pair_P: torch.Tensor,
        expert_of_pair_P: torch.Tensor,
        backend: Backend,
        *stacks: torch.Tensor,
    ) -> torch.Tensor:
        params = ExpertParams(*stacks)
        out_RD, kept = experts_apply(
            params, rows_RD, row_of_pair_P, expert_of_pair_P, gate_P, backend=backend
        )
        ctx.params, ctx.kept = params, kept
        return out_RD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout_RD: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        params: ExpertParams = ctx.params
        drows_RD, dgate_P, pending = input_grads(params, ctx.kept, dout_RD)
        counts_E, grouped = pending.counts_E, pending.grouped
        products = [
            _products(pending.dgate_up_PG, pending.x_PD, counts_E, grouped),
            _products(pending.dy_PD, pending.act_PF, counts_E, grouped),
        ]
        biases = [torch.zeros_like(stack) for stack in params.stacks[2:]]
        for bias_EN, dy_PN in zip(biases, (pending.dgate_up_PG, pending.dy_PD), strict=False):
            _add_sums(bias_EN, dy_PN, counts_E)
        return drows_RD, dgate_P, None, None, None, *products, *biases


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


def _linear(
    x_PK: torch.Tensor, weight_ENK: torch.Tensor, counts_E: torch.Tensor, grouped: bool
) -> torch.Tensor:
    """Return x @ weight^T [P, N], with the matrix of each row's expert."""
    if grouped:
        return F.grouped_mm(x_PK, weight_ENK.transpose(1, 2), offs=_ends(counts_E))
    y_PN = x_PK.new_empty(x_PK.shape[0], weight_ENK.shape[1])
    counts = to_host(counts_E)
    for x, weight_NK, y in zip(x_PK.split(counts), weight_ENK, y_PN.split(counts), strict=True):
        torch.mm(x, weight_NK.T, out=y)
    return y_PN


def _products(
    dy_PN: torch.Tensor, x_PK: torch.Tensor, counts_E: torch.Tensor, grouped: bool
) -> torch.Tensor:
    """Return dy^T @ x of each expert [E, N, K]."""
    if grouped and x_PK.device.type != "cpu":
        return F.grouped_mm(dy_PN.T, x_PK, offs=_ends(counts_E))
    counts = to_host(counts_E)
    out_ENK = dy_PN.new_empty(len(counts), dy_PN.shape[1], x_PK.shape[1])
    for out_NK, dy, x in zip(out_ENK, dy_PN.split(counts), x_PK.split(counts), strict=True):
        torch.mm(dy.T, x, out=out_NK)  # of no rows it is 0
    return out_ENK


def _add_products(
    sum_ENK: torch.Tensor,
    dy_PN: torch.Tensor,
    x_PK: torch.Tensor,
    counts_E: torch.Tensor,
    grouped: bool,
) -> None:
    """Add dy^T @ x of each expert to its matrix.

    On the CPU always by expert: a grouped GEMM would write the whole stack to fresh memory before
    it can be added, and that costs as much as the products.
    """
    if grouped and x_PK.device.type != "cpu":
        sum_ENK.add_(_products(dy_PN, x_PK, counts_E, grouped))
        return
    counts = to_host(counts_E)
    # in 16 bits a product that is added while it is made takes one and a half times as long
    same_type = sum_ENK.dtype == x_PK.dtype and x_PK.element_size() > 2
    product_NK = x_PK.new_empty(0 if same_type else sum_ENK.shape[1], x_PK.shape[1])
    parts = zip(sum_ENK, dy_PN.split(counts), x_PK.split(counts), counts, strict=True)
    for sum_NK, dy, x, rows in parts:
        if rows == 0:
            continue
        if same_type:
            sum_NK.addmm_(dy.T, x)
        else:
            sum_NK.add_(torch.mm(dy.T, x, out=product_NK))


def _add_bias(y_PN: torch.Tensor, bias_EN: torch.Tensor | None, counts_E: torch.Tensor) -> None:
    """Add to each row the bias of its expert, in place."""
    if bias_EN is not None:
        y_PN.add_(bias_EN.repeat_interleave(counts_E, dim=0, output_size=len(y_PN)))


def _add_sums(sum_EN: torch.Tensor | None, dy_PN: torch.Tensor, counts_E: torch.Tensor) -> None:
    """Add the sum of each expert's rows to its bias gradient."""
    if sum_EN is None:
        return
    if dy_PN.device.type != "cpu":
        sum_EN.add_(sum_segments(dy_PN, counts_E, sum_EN.dtype))
        return
    # on the CPU several times as fast, and counts are there anyway
    for sum_N, dy in zip(sum_EN, dy_PN.split(to_host(counts_E)), strict=True):
        sum_N.add_(dy.sum(dim=0, dtype=sum_EN.dtype))


def _ends(counts_E: torch.Tensor) -> torch.Tensor:
    return counts_E.cumsum(0).to(torch.int32)
