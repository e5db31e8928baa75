import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from disagmoe.model.pairs import (
    PairPlan,
    combine_grads,
    combine_pairs,
    gather_grads,
    gather_pairs,
)

ROWS = torch.tensor([0, 0, 2, 2, 2, 3])
EXPERTS = torch.tensor([1, 0, 2, 0, 1, 1])


def test_slots_are_pairs_sorted_stably_by_expert() -> None:
    plan = PairPlan.of(ROWS, EXPERTS, rows=5, experts=4)
    assert plan.pair_of_slot_P.tolist() == [1, 3, 0, 4, 5, 2]
    assert plan.slot_of_pair_P.tolist() == [2, 0, 5, 1, 3, 4]
    assert plan.row_of_slot_P.tolist() == [0, 2, 0, 2, 3, 2]
    assert plan.first_pair_R.tolist() == [0, 2, 2, 5, 6]
    assert plan.counts_E.tolist() == [2, 3, 1, 0]


def test_gradients_are_those_of_autograd() -> None:
    plan = PairPlan.of(ROWS, EXPERTS, rows=5, experts=4)
    rows = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    gates = torch.randn(6, dtype=torch.float64, requires_grad=True)
    gathered = rows[plan.row_of_slot_P]
    grad = torch.randn(6, 3, dtype=torch.float64)
    (expected,) = torch.autograd.grad(gathered, rows, grad)
    torch.testing.assert_close(gather_pairs(rows, plan), gathered)
    torch.testing.assert_close(gather_grads(grad, plan), expected)

    weighted = y * gates[plan.pair_of_slot_P, None]
    combined = torch.zeros(5, 3, dtype=torch.float64).index_add(0, plan.row_of_slot_P, weighted)
    grad = torch.randn(5, 3, dtype=torch.float64)
    expected_grads = torch.autograd.grad(combined, (y, gates), grad)
    torch.testing.assert_close(combine_pairs(y, gates, plan), combined)
    found = combine_grads(grad, y.detach(), gates.detach(), plan)
    for ours, theirs in zip(found, expected_grads, strict=True):
        torch.testing.assert_close(ours, theirs)


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(0, 3), st.integers(0, 999))
@settings(derandomize=True, deadline=None)
def test_combining_what_was_gathered_weighs_each_row_by_its_gates(
    pair_counts: list[int], extra_rows: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor(pair_counts + [0] * extra_rows, dtype=torch.int64)
    row_P = torch.repeat_interleave(torch.arange(len(counts)), counts)
    expert_P = torch.randint(4, row_P.shape, generator=generator)
    plan = PairPlan.of(row_P, expert_P, rows=len(counts), experts=4)
    rows = torch.randn(len(counts), 3, generator=generator, dtype=torch.float64)
    gates = torch.randn(row_P.shape, generator=generator, dtype=torch.float64)
    expected = (
        torch.stack([row * gates[row_P == index].sum() for index, row in enumerate(rows)])
        if len(rows)
        else rows
    )
    torch.testing.assert_close(combine_pairs(gather_pairs(rows, plan), gates, plan), expected)


def test_bf16_terms_are_summed_in_fp32_and_rounded_once() -> None:
    pairs = 300
    row_P, expert_P = torch.zeros(pairs, dtype=torch.int64), torch.arange(pairs) % 7
    plan = PairPlan.of(row_P, expert_P, rows=1, experts=7)
    rows = torch.full((1, 8), 1.0, dtype=torch.bfloat16)
    x = gather_pairs(rows, plan)
    out = combine_pairs(x, torch.full((pairs,), 1.0 / pairs), plan)
    assert torch.equal(out, torch.ones(1, 8, dtype=torch.bfloat16))
    # bf16 partial sums would stall at 256.
    grad = gather_grads(torch.ones_like(x), plan)
    assert torch.equal(grad, torch.full((1, 8), 300.0, dtype=torch.bfloat16))
