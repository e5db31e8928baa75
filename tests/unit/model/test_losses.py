import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from disagmoe.model.losses import (
    IGNORED,
    StepTotals,
    cross_entropy,
    global_balance_loss,
    micro_batch_balance_loss,
    sequence_balance_loss,
    z_loss,
)
from disagmoe.model.params import RouterParams
from disagmoe.model.router import Routing, Rule, route

SKEWED = torch.tensor(
    [[3.0, 2.0, 0.0, -1.0], [3.0, 2.0, 0.0, 0.0], [3.0, 1.0, 0.0, -1.0], [2.0, 1.5, 0.0, 0.0]]
)
FIRST = torch.tensor([[3.0, 2.0, 0.0, -1.0], [3.0, 2.0, 0.0, 0.0]])
SECOND = torch.tensor([[0.0, -1.0, 2.0, 1.0], [-1.0, 0.0, 1.0, 2.0]])


def totals(
    *, valid_targets: int = 1, tokens: int = 1, sequences: int = 1, micro_batches: int = 1
) -> StepTotals:
    return StepTotals(
        valid_targets=valid_targets,
        tokens=tokens,
        sequences=sequences,
        micro_batches=micro_batches,
    )


def routed(logits_TE: torch.Tensor, top_k: int = 2) -> Routing:
    identity = torch.eye(logits_TE.shape[1], dtype=logits_TE.dtype)
    return route(RouterParams(identity), logits_TE, Rule(top_k=top_k, renormalise=True))


def micro_batch_loss(routing: Routing, micro_batches: int = 1) -> torch.Tensor:
    tokens = routing.expert_TK.shape[0]
    divisors = totals(micro_batches=micro_batches)
    return micro_batch_balance_loss(routing, routing.count_choices(), tokens, divisors)


def loss_and_grads(
    n: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, valid: int, chunk_tokens: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    leaves = n.detach().requires_grad_(), head.detach().requires_grad_()
    loss = cross_entropy(*leaves, targets, totals(valid_targets=valid), chunk_tokens=chunk_tokens)
    return (loss.detach(), *torch.autograd.grad(loss, leaves))


class TestCrossEntropy:
    def test_divisor_is_the_steps_valid_targets(self) -> None:
        # Three targets of loss 2 in one micro-batch, one of loss 8 in the other: 3.5, not 5.
        def logits_of_loss(loss: float) -> list[float]:
            odds = torch.tensor(loss, dtype=torch.float64).expm1().log()
            return [0.0, float(odds)]

        head = torch.eye(2, dtype=torch.float64)
        first = torch.tensor([logits_of_loss(2.0)] * 3, dtype=torch.float64)
        second = torch.tensor([logits_of_loss(8.0)], dtype=torch.float64)
        zeros = torch.zeros(4, dtype=torch.int64)
        parts = [
            loss_and_grads(first, head, zeros[:3], 4),
            loss_and_grads(second, head, zeros[:1], 4),
        ]
        whole = loss_and_grads(torch.cat((first, second)), head, zeros, 4)
        torch.testing.assert_close(whole[0], torch.tensor(3.5, dtype=torch.float64))
        torch.testing.assert_close(parts[0][0] + parts[1][0], whole[0])
        torch.testing.assert_close(torch.cat((parts[0][1], parts[1][1])), whole[1])
        torch.testing.assert_close(parts[0][2] + parts[1][2], whole[2])

    @pytest.mark.parametrize("chunk_tokens", [0, 2])
    def test_ignored_targets_count_for_nothing(self, chunk_tokens: int) -> None:
        n, head = torch.randn(6, 4, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
        targets = torch.tensor([1, IGNORED, 8, IGNORED, IGNORED, 0])
        kept = targets != IGNORED
        loss, grad_n, grad_head = loss_and_grads(n, head, targets, 3, chunk_tokens)
        expected = loss_and_grads(n[kept], head, targets[kept], 3)
        torch.testing.assert_close(loss, expected[0])
        torch.testing.assert_close(grad_n[kept], expected[1])
        assert not grad_n[~kept].any()
        torch.testing.assert_close(grad_head, expected[2])

    @pytest.mark.parametrize("chunk_tokens", [0, 2])
    @pytest.mark.parametrize("tokens", [0, 5])
    def test_no_valid_target_is_exactly_zero(self, tokens: int, chunk_tokens: int) -> None:
        targets = torch.full((tokens,), IGNORED)
        result = loss_and_grads(torch.randn(tokens, 4), torch.randn(9, 4), targets, 0, chunk_tokens)
        for value in result:
            assert torch.equal(value, torch.zeros_like(value))

    @pytest.mark.parametrize("chunk_tokens", [1, 3, 7, 100])
    def test_chunks_change_nothing(self, chunk_tokens: int) -> None:
        n, head = torch.randn(7, 4, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
        targets = torch.tensor([3, 0, IGNORED, 8, 8, 1, 2])
        whole = loss_and_grads(n, head, targets, 11)
        for value, expected in zip(
            loss_and_grads(n, head, targets, 11, chunk_tokens), whole, strict=True
        ):
            torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)

    def test_chunks_scale_with_the_incoming_gradient_and_run_without_one(self) -> None:
        n = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
        head = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
        targets = torch.tensor([3, 0, 1, 8, 2])

        def loss(n: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
            divisors = totals(valid_targets=5)
            return 3.0 * cross_entropy(n, head, targets, divisors, chunk_tokens=2)

        assert torch.autograd.gradcheck(loss, (n, head))
        with torch.no_grad():
            torch.testing.assert_close(loss(n, head), 3 * F.cross_entropy(n @ head.T, targets))

    @pytest.mark.parametrize("needs_grad", [False, True])
    def test_logits_exist_one_chunk_at_a_time(self, needs_grad: bool) -> None:
        class Largest(TorchDispatchMode):
            elements = 0

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
                out = func(*args, **(kwargs or {}))
                if isinstance(out, torch.Tensor):
                    self.elements = max(self.elements, out.numel())
                return out

        n, head = torch.randn(60, 4, requires_grad=needs_grad), torch.randn(100, 4)
        with Largest() as chunked:
            cross_entropy(n, head, torch.zeros(60, dtype=torch.int64), totals(), chunk_tokens=7)
        assert chunked.elements == 7 * 100

    def test_bf16_sums_in_fp32(self) -> None:
        n = torch.randn(4096, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
        head = torch.randn(16, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
        targets = torch.arange(4096) % 16
        exact = F.cross_entropy((n @ head.T).double(), targets)
        for chunk_tokens in (0, 100):
            loss, grad_n, grad_head = loss_and_grads(n, head, targets, 4096, chunk_tokens)
            assert loss.dtype == torch.float32
            assert grad_n.dtype == grad_head.dtype == torch.bfloat16
            torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=0)


class TestBalance:
    def test_skewed_value(self) -> None:
        # A softmax over the probabilities instead would give 1.2211.
        assert micro_batch_loss(routed(SKEWED)).item() == pytest.approx(1.8420, abs=5e-5)
        as_one_sequence = sequence_balance_loss(routed(SKEWED), 1, totals())
        assert as_one_sequence.item() == pytest.approx(1.8420, abs=5e-5)

    def test_micro_batches_and_all_tokens_together(self) -> None:
        values = [micro_batch_loss(routed(logits)).item() for logits in (FIRST, SECOND)]
        assert values == pytest.approx([1.885, 1.762], abs=5e-4)
        together = micro_batch_loss(routed(torch.cat((FIRST, SECOND))))
        assert together.item() == pytest.approx(1.0, abs=5e-4)
        # Megatron-LM#3672: probabilities of a part, divided by the tokens of the step, only once
        counts = routed(FIRST).count_choices() + routed(SECOND).count_choices()
        parts = [
            global_balance_loss(routed(one), counts, totals(tokens=4, micro_batches=2))
            for one in (FIRST, SECOND)
        ]
        torch.testing.assert_close(sum(parts), together)
        step = micro_batch_loss(routed(FIRST), 2) + micro_batch_loss(routed(SECOND), 2)
        assert step.item() == pytest.approx(1.823, abs=1e-3)
        # Per sequence the value does not depend on how sequences fall into micro-batches.
        both = sequence_balance_loss(routed(torch.cat((FIRST, SECOND))), 2, totals(sequences=2))
        torch.testing.assert_close(both, step)

    @pytest.mark.parametrize(("experts", "top_k"), [(4, 1), (4, 2), (6, 3)])
    def test_uniform_routing_is_one(self, experts: int, top_k: int) -> None:
        # Token t prefers experts t, t+1, ..: every expert is chosen as often and as probable.
        logits = torch.stack(
            [torch.roll(torch.arange(experts, 0, -1.0), shift) for shift in range(experts)]
        )
        routing = routed(logits.double(), top_k)
        one = torch.tensor(1.0, dtype=torch.float64)
        torch.testing.assert_close(micro_batch_loss(routing), one)
        torch.testing.assert_close(sequence_balance_loss(routing, 1, totals()), one)
        step = global_balance_loss(routing, routing.count_choices(), totals(tokens=experts))
        torch.testing.assert_close(step, one)

    def test_parts_of_workers_add_up_in_value_and_gradient(self) -> None:
        logits = torch.randn(10, 6, dtype=torch.float64, requires_grad=True)
        whole = micro_batch_loss(routed(logits), 3)
        counts = routed(logits).count_choices()
        parts = [
            micro_batch_balance_loss(routed(part), counts, 10, totals(micro_batches=3))
            for part in (logits[:7], logits[7:7], logits[7:])
        ]
        total = torch.stack(parts).sum()
        torch.testing.assert_close(total, whole)
        for ours, expected in zip(
            torch.autograd.grad(total, logits), torch.autograd.grad(whole, logits), strict=True
        ):
            torch.testing.assert_close(ours, expected)

    def test_sequences_add_up_whoever_holds_them(self) -> None:
        logits = torch.randn(4 * 5, 6, dtype=torch.float64)
        divisors = totals(sequences=4)
        whole = sequence_balance_loss(routed(logits), 4, divisors)
        parts = [
            sequence_balance_loss(routed(logits[:5]), 1, divisors),
            sequence_balance_loss(routed(logits[5:]), 3, divisors),
            sequence_balance_loss(routed(logits[:0]), 0, divisors),
        ]
        torch.testing.assert_close(torch.stack(parts).sum(), whole)

    @pytest.mark.parametrize("scope", ["sequence", "micro_batch"])
    def test_gradients_match_finite_differences(self, scope: str) -> None:
        # Gaps between logits are far above the step of the differences: no choice flips.
        logits = torch.linspace(-2, 2, 24, dtype=torch.float64)[torch.randperm(24)].view(6, 4)

        def loss(logits: torch.Tensor) -> torch.Tensor:
            routing = routed(logits)
            if scope == "micro_batch":
                return micro_batch_loss(routing, 2)
            return sequence_balance_loss(routing, 2, totals(sequences=5))

        assert torch.autograd.gradcheck(loss, (logits.requires_grad_(),))


class TestZLoss:
    def test_value_and_divisor(self) -> None:
        logits = torch.tensor([[0.0, 0.0], [3.0, 3.0]], dtype=torch.float64)
        log2 = torch.tensor(2.0, dtype=torch.float64).log()
        expected = (log2**2 + (3 + log2) ** 2) / 8
        torch.testing.assert_close(z_loss(routed(logits, 1), totals(tokens=8)), expected)

    def test_no_tokens_give_zero(self) -> None:
        logits = torch.zeros(0, 4, requires_grad=True)
        routing = routed(logits)
        for loss in (
            z_loss(routing, totals(tokens=0)),
            micro_batch_balance_loss(routing, torch.zeros(4), 0, totals()),
            global_balance_loss(routing, torch.zeros(4), totals(tokens=0)),
            sequence_balance_loss(routing, 0, totals()),
        ):
            assert loss.item() == 0.0
            (grad,) = torch.autograd.grad(loss, logits, retain_graph=True)
            assert grad.shape == (0, 4)
