import pytest
import torch

from disagmoe.model.router import draw_experts, route

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0]])


def route_logits(logits: torch.Tensor, top_k: int, *, renormalise: bool = True):  # type: ignore[no-untyped-def]
    return route(torch.eye(logits.shape[1]), logits, top_k=top_k, renormalise=renormalise)


@pytest.mark.parametrize(
    ("renormalise", "gates"), [(False, [0.6439, 0.2369]), (True, [0.7311, 0.2689])]
)
def test_softmax_comes_before_top_k(renormalise: bool, gates: list[float]) -> None:
    routing = route_logits(LOGITS, 2, renormalise=renormalise)
    assert routing.expert_TK.tolist() == [[0, 1]]
    torch.testing.assert_close(routing.gate_TK, torch.tensor([gates]), atol=5e-5, rtol=0)


def test_lower_expert_wins_ties() -> None:
    logits = torch.zeros(3, 70)
    logits[1, [64, 9, 33]] = 1.0
    logits[2, 40:] = 2.0
    assert route_logits(logits, 3).expert_TK.tolist() == [[0, 1, 2], [9, 33, 64], [40, 41, 42]]


def test_bf16_input_is_routed_in_fp32() -> None:
    generator = torch.Generator().manual_seed(0)
    n = torch.randn(500, 64, generator=generator).bfloat16()
    weight = torch.randn(256, 64, generator=generator).bfloat16()
    routing = route(weight, n, top_k=8, renormalise=True)
    exact = route(weight.double(), n.double(), top_k=8, renormalise=True)
    assert (routing.gate_TK.dtype, routing.logits_TE.dtype) == (torch.float32, torch.float32)
    same = (routing.expert_TK.sort().values == exact.expert_TK.sort().values).all(dim=1)
    assert same.double().mean() > 0.999


def test_fp64_stays_fp64() -> None:
    n = torch.randn(3, 4, dtype=torch.float64)
    routing = route(torch.eye(4, dtype=torch.float64), n, top_k=2, renormalise=True)
    assert routing.gate_TK.dtype == routing.probs_TE.dtype == torch.float64


def test_choices_are_counted_and_no_tokens_are_legal() -> None:
    logits = torch.tensor([[3.0, 2.0, 0.0, 0.0], [0.0, 2.0, 0.0, 3.0]])
    assert route_logits(logits, 2).count_choices().tolist() == [1, 2, 0, 1]
    empty = route_logits(torch.zeros(0, 4), 2)
    assert empty.expert_TK.shape == empty.gate_TK.shape == (0, 2)
    assert empty.count_choices().tolist() == [0, 0, 0, 0]


def test_gates_pass_gradients_to_weight_and_input() -> None:
    weight = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    n = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda w, x: route(w, x, top_k=2, renormalise=True).gate_TK, (weight, n)
    )


def test_detach_keeps_values_and_drops_the_graph() -> None:
    weight = torch.randn(4, 3, requires_grad=True)
    routing = route(weight, torch.randn(2, 3), top_k=2, renormalise=True)
    detached = routing.detach()
    assert routing.gate_TK.requires_grad
    for name in ("expert_TK", "gate_TK", "probs_TE", "logits_TE"):
        assert torch.equal(getattr(detached, name), getattr(routing, name))
        assert not getattr(detached, name).requires_grad


def test_given_experts_keep_the_weights_that_the_router_has_for_them() -> None:
    given = torch.tensor([[3, 1]])
    routing = route(torch.eye(4), LOGITS, top_k=2, renormalise=False, expert_TK=given)
    free = route_logits(LOGITS, 4, renormalise=False)
    assert torch.equal(routing.expert_TK, given)
    assert torch.equal(routing.gate_TK, free.gate_TK[:, [3, 1]])


def test_drawn_experts_are_distinct_equally_frequent_and_differ_by_layer() -> None:
    drawn = draw_experts(4000, 8, 3, layer=1, device=torch.device("cpu"))
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    counts = torch.bincount(drawn.flatten(), minlength=8) / (4000 * 3 / 8)
    assert (counts - 1).abs().max() < 0.06  # 3 standard deviations of a binomial
    same = draw_experts(4000, 8, 3, layer=1, device=torch.device("cpu"))
    other = draw_experts(4000, 8, 3, layer=2, device=torch.device("cpu"))
    assert torch.equal(drawn, same)
    assert not torch.equal(drawn, other)
