import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from disagmoe.model.dispatch import (
    Dedupe,
    Dispatch,
    combine,
    count_distinct,
    join_rows,
    place_gates,
    plan_dispatch,
    sum_rows,
)
from disagmoe.model.partition import expert_ranges

CHOICES = torch.tensor([[4, 0], [1, 0], [3, 4]])


def lists(dispatch: Dispatch) -> tuple[list[int], ...]:
    return (
        dispatch.token_R.tolist(),
        dispatch.row_P.tolist(),
        dispatch.expert_P.tolist(),
        dispatch.choice_P.tolist(),
    )


def test_one_row_per_token_and_worker() -> None:
    parts = plan_dispatch(CHOICES, [range(2), range(2, 3), range(3, 5)], "rank")
    assert [lists(part) for part in parts] == [
        ([0, 1], [0, 1, 1], [0, 1, 0], [1, 2, 3]),
        ([], [], [], []),
        ([0, 2], [0, 1, 1], [1, 0, 1], [0, 4, 5]),
    ]


def test_one_row_per_choice() -> None:
    parts = plan_dispatch(CHOICES, [range(2), range(2, 3), range(3, 5)], "none")
    assert [lists(part) for part in parts] == [
        ([0, 1, 1], [0, 1, 2], [0, 1, 0], [1, 2, 3]),
        ([], [], [], []),
        ([0, 2, 2], [0, 1, 2], [1, 0, 1], [0, 4, 5]),
    ]


@pytest.mark.parametrize("dedupe", ["rank", "none"])
def test_no_tokens_send_nothing(dedupe: Dedupe) -> None:
    parts = plan_dispatch(torch.zeros(0, 2, dtype=torch.int64), [range(1), range(1, 2)], dedupe)
    assert [lists(part) for part in parts] == [([], [], [], [])] * 2


@given(st.data())
@settings(derandomize=True, deadline=None)
def test_as_many_rows_are_sent_as_routing_asks_for(data: st.DataObject) -> None:
    experts = data.draw(st.integers(1, 9))
    top_k = data.draw(st.integers(1, experts))
    ranges = expert_ranges(experts, [1.0] * data.draw(st.integers(1, experts)))
    chosen = [
        data.draw(st.permutations(range(experts))) for _ in range(data.draw(st.integers(0, 9)))
    ]
    expert_TK = torch.tensor(chosen, dtype=torch.int64).view(-1, experts)[:, :top_k]
    owners = torch.tensor([part for part, held in enumerate(ranges) for _ in held])
    sent = plan_dispatch(expert_TK, ranges, "rank")
    assert int(count_distinct(expert_TK, owners)) == sum(len(part.token_R) for part in sent)


@given(st.data())
@settings(derandomize=True, deadline=None)
def test_every_choice_reaches_its_expert_once_in_order(data: st.DataObject) -> None:
    experts = data.draw(st.integers(1, 9))
    top_k = data.draw(st.integers(1, experts))
    workers = data.draw(st.integers(1, experts))
    tokens = data.draw(st.integers(0, 20))
    dedupe: Dedupe = data.draw(st.sampled_from(["rank", "none"]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    expert_TK = torch.rand(tokens, experts, generator=generator).argsort(1)[:, :top_k]
    weights = data.draw(st.lists(st.sampled_from([1.0, 1.1]), min_size=workers, max_size=workers))
    ranges = expert_ranges(experts, weights)
    seen = []
    for held, part in zip(ranges, plan_dispatch(expert_TK, ranges, dedupe), strict=True):
        token_P = part.token_R[part.row_P]
        assert torch.equal(token_P, part.choice_P // top_k)
        assert torch.equal(part.expert_P + held.start, expert_TK.flatten()[part.choice_P])
        assert bool((part.expert_P < len(held)).all())
        assert part.choice_P.tolist() == sorted(part.choice_P.tolist())
        assert part.row_P.tolist() == sorted(part.row_P.tolist())
        assert set(part.row_P.tolist()) == set(range(len(part.token_R)))
        if dedupe == "rank":
            assert part.token_R.tolist() == sorted(set(part.token_R.tolist()))
        else:
            assert torch.equal(part.token_R, token_P)
        seen += part.choice_P.tolist()
    assert sorted(seen) == list(range(tokens * top_k))


def test_combine_adds_rows_at_their_tokens() -> None:
    residual = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    rows = [torch.randn(count, 2, dtype=torch.float64, requires_grad=True) for count in (2, 0, 3)]
    ids = [torch.tensor([0, 2]), torch.tensor([], dtype=torch.int64), torch.tensor([1, 2, 2])]
    out = combine(residual, list(zip(ids, rows, strict=True)))
    expected = torch.stack([rows[0][0], rows[2][0], rows[0][1] + rows[2][1] + rows[2][2]])
    torch.testing.assert_close(out, expected)
    grad = torch.randn(3, 2, dtype=torch.float64)
    grads = torch.autograd.grad(out, [residual, *rows], grad)
    assert torch.equal(grads[0], grad)
    for ours, token_R in zip(grads[1:], ids, strict=True):
        assert torch.equal(ours, grad[token_R])


def test_combine_leaves_its_input_alone_and_rounds_once() -> None:
    residual = torch.full((1, 4), 256.0, dtype=torch.bfloat16)
    token = torch.tensor([0])
    ones = torch.ones(1, 4, dtype=torch.bfloat16)
    out = combine(residual, [(token, ones)] * 4)  # in bf16, 256 + 1 is 256
    assert torch.equal(out, torch.full((1, 4), 260.0, dtype=torch.bfloat16))
    assert torch.equal(residual, torch.full((1, 4), 256.0, dtype=torch.bfloat16))


def test_sums_and_gates_return_to_their_tokens() -> None:
    parts = plan_dispatch(CHOICES, [range(2), range(2, 3), range(3, 5)], "rank")
    gates = torch.rand(3, 2)
    values = [(part.choice_P, gates.flatten()[part.choice_P]) for part in parts]
    assert torch.equal(place_gates(3, 2, values), gates)
    rows = [(part.token_R, torch.ones(len(part.token_R), 2)) for part in parts]
    assert sum_rows(3, rows)[:, 0].tolist() == [2.0, 1.0, 1.0]


def test_rows_of_several_senders_are_counted_through() -> None:
    parts = [torch.tensor([0, 0, 1]), torch.tensor([], dtype=torch.int64), torch.tensor([0, 1])]
    assert join_rows(parts, [2, 0, 3]).tolist() == [0, 0, 1, 2, 3]
