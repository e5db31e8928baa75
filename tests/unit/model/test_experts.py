import pytest
import torch
import torch.nn.functional as F

from disagmoe.errors import ConfigError
from disagmoe.model.experts import (
    Backend,
    add_weight_grads,
    experts_apply,
    experts_forward,
    grouped_gemm_fits,
    input_grads,
)
from disagmoe.model.params import ExpertParams

HIDDEN, WIDTH, EXPERTS = 16, 8, 4
needs_grouped = pytest.mark.skipif(
    not hasattr(F, "grouped_mm"), reason="torch.nn.functional.grouped_mm needs torch >= 2.10"
)


def make(dtype: torch.dtype = torch.float64, experts: int = EXPERTS) -> ExpertParams:
    generator = torch.Generator().manual_seed(1)
    stacks = (
        torch.randn(shape, generator=generator).to(dtype).requires_grad_()
        for shape in ((experts, 2 * WIDTH, HIDDEN), (experts, HIDDEN, WIDTH))
    )
    return ExpertParams(*stacks)


def params_of(params: ExpertParams) -> tuple[torch.Tensor, torch.Tensor]:
    return params.gate_up_EGD, params.down_EDF


def one_expert(params: ExpertParams, expert: int, x: torch.Tensor) -> torch.Tensor:
    gate, up = params.gate_up_EGD[expert, :WIDTH], params.gate_up_EGD[expert, WIDTH:]
    return (F.silu(x @ gate.T) * (x @ up.T)) @ params.down_EDF[expert].T


def pairs(name: str) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Rows, row of each pair, expert of each pair."""
    cases = {
        "mixed": (5, [0, 0, 1, 2, 2, 2, 4], [3, 0, 0, 1, 3, 0, 3]),
        "idle expert": (3, [0, 1, 1, 2], [0, 3, 0, 3]),
        "all to one": (3, [0, 1, 2], [2, 2, 2]),
        "no pairs": (2, [], []),
        "no rows": (0, [], []),
    }
    rows, row_P, expert_P = cases[name]
    return rows, torch.tensor(row_P, dtype=torch.int64), torch.tensor(expert_P, dtype=torch.int64)


CASES = ["mixed", "idle expert", "all to one", "no pairs", "no rows"]


def run(
    params: ExpertParams, case: str, backend: Backend
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return the output and the gradients of rows, gates, gate_up and down."""
    rows, row_P, expert_P = pairs(case)
    dtype = params.down_EDF.dtype
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(rows, HIDDEN, generator=generator).to(dtype).requires_grad_()
    gate_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    gates = torch.rand(row_P.shape, generator=generator).to(gate_dtype).requires_grad_()
    grad = torch.randn(rows, HIDDEN, generator=generator).to(dtype)
    out = experts_forward(params, x, row_P, expert_P, gates, backend=backend)
    inputs = (x, gates, params.gate_up_EGD, params.down_EDF)
    return out, torch.autograd.grad(out, inputs, grad)


@pytest.mark.parametrize("case", CASES)
def test_equals_one_expert_at_a_time(case: str) -> None:
    params = make()
    rows, row_P, expert_P = pairs(case)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(rows, HIDDEN, generator=generator).double().requires_grad_()
    gates = torch.rand(row_P.shape, generator=generator).double().requires_grad_()
    grad = torch.randn(rows, HIDDEN, generator=generator).double()
    expected = x * 0.0
    for pair, (row, expert) in enumerate(zip(row_P.tolist(), expert_P.tolist(), strict=True)):
        term = gates[pair] * one_expert(params, expert, x[row])
        expected = expected.index_add(0, torch.tensor([row]), term[None])
    inputs = (x, gates, params.gate_up_EGD, params.down_EDF)
    expected_grads = torch.autograd.grad(
        expected, inputs, grad, allow_unused=True, materialize_grads=True
    )
    out, grads = run(params, case, "auto")
    torch.testing.assert_close(out, expected)
    for ours, theirs in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gate_gradient_is_the_inner_product_with_the_experts_output() -> None:
    params = make()
    x = torch.randn(3, HIDDEN, dtype=torch.float64)
    row_P, expert_P = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 1, 2, 0, 3, 1])
    gates = torch.rand(6, dtype=torch.float64, requires_grad=True)
    grad_y = torch.randn(3, HIDDEN, dtype=torch.float64)
    out = experts_forward(params, x, row_P, expert_P, gates)
    (grad_gates,) = torch.autograd.grad(out, gates, grad_y)
    expected = torch.stack(
        [grad_y[r] @ one_expert(params, e, x[r]) for r, e in zip(row_P, expert_P, strict=True)]
    )
    torch.testing.assert_close(grad_gates, expected)


@needs_grouped
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # Both run the same GEMMs; only the order of sums inside one may differ.
    [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)],
)
def test_grouped_and_loop_agree(dtype: torch.dtype, tolerance: float, case: str) -> None:
    params = make(dtype)
    out, grads = run(params, case, "grouped")
    expected_out, expected_grads = run(params, case, "loop")
    for ours, theirs in zip((out, *grads), (expected_out, *expected_grads), strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_experts_without_tokens_have_zero_gradients(case: str, dtype: torch.dtype) -> None:
    params = make(dtype)
    rows, _, expert_P = pairs(case)
    out, (grad_x, _, grad_gate_up, grad_down) = run(params, case, "auto")
    assert (out.shape, out.dtype) == ((rows, HIDDEN), dtype)
    assert grad_x.shape == (rows, HIDDEN)
    for expert in range(EXPERTS):
        used = expert in expert_P.tolist()
        assert bool(grad_gate_up[expert].any()) == bool(grad_down[expert].any()) == used
    if rows > 1 and case == "mixed":
        assert not out[3].any(), "row 3 has no pair"


def test_single_expert_runs() -> None:
    params = make(torch.float32, experts=1)
    x = torch.randn(3, HIDDEN)
    row_P, expert_P = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    out = experts_forward(params, x, row_P, expert_P, torch.ones(3))
    torch.testing.assert_close(out, one_expert(params, 0, x))


@needs_grouped
@pytest.mark.parametrize(
    ("shape", "dtype", "fits"),
    [
        ((2, 4, 8), torch.float32, True),
        ((2, 8, 16), torch.bfloat16, True),
        ((2, 4, 8), torch.bfloat16, False),
        ((2, 8, 6), torch.float32, False),
        ((2, 6, 8), torch.float32, False),
        ((1, 8, 8), torch.float32, False),
        ((2, 8, 8), torch.float64, False),
    ],
)
def test_predicate_says_what_torch_can_do(
    shape: tuple[int, int, int], dtype: torch.dtype, fits: bool
) -> None:
    weight = torch.randn(shape).to(dtype).requires_grad_()
    assert grouped_gemm_fits(weight) == fits
    x = torch.randn(5, shape[2]).to(dtype).requires_grad_()
    ends = torch.linspace(2, 5, shape[0]).to(torch.int32)

    def run_grouped() -> None:
        y = F.grouped_mm(x, weight.transpose(1, 2), offs=ends)
        torch.autograd.grad(y, (x, weight), torch.ones_like(y))

    if fits:
        run_grouped()
    elif shape[0] > 1:
        with pytest.raises(RuntimeError):
            run_grouped()


def test_asking_for_grouped_where_it_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no grouped GEMM .*float64 on cpu .*'auto' or 'loop'"):
        run(make(torch.float64), "mixed", "grouped")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_the_backward_in_parts_adds_to_sums_in_the_exact_type(
    case: str, dtype: torch.dtype
) -> None:
    params = make(dtype)
    _, expected = run(params, case, "auto")
    rows, row_P, expert_P = pairs(case)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    generator = torch.Generator().manual_seed(2)  # what `run` draws
    x = torch.randn(rows, HIDDEN, generator=generator).to(dtype)
    gates = torch.rand(row_P.shape, generator=generator).to(exact)
    dout = torch.randn(rows, HIDDEN, generator=generator).to(dtype)
    _, kept = experts_apply(params, x, row_P, expert_P, gates)
    dx, dgates, pending = input_grads(params, kept, dout)
    sums = [torch.ones(weight.shape, dtype=exact) for weight in params_of(params)]
    add_weight_grads(pending, *sums)
    assert torch.equal(dx, expected[0])
    assert torch.equal(dgates, expected[1])
    for found, theirs in zip(sums, expected[2:], strict=True):
        torch.testing.assert_close(found, theirs.to(exact) + 1)
