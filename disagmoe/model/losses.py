"""Cross-entropy, load-balancing loss and router z-loss, each as a share of the whole step.

Every function returns what the tokens at hand contribute to the step's value, divided by counts of
the whole step (`StepTotals`). So contributions of micro-batches and workers add up exactly, and no
one divides by a number of micro-batches or workers afterwards. Layers are summed by the caller.

Letters: T tokens, V vocabulary, D hidden, E experts, K top-k, B sequences.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from disagmoe.model.precision import add_to, wide
from disagmoe.model.router import Routing

IGNORED = -100
"""Target of a position that is not learned from, as in torch and Transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """Sizes of one step over all micro-batches and workers: the divisors of its losses."""

    valid_targets: int
    """Targets that are not IGNORED."""
    tokens: int
    sequences: int
    micro_batches: int


def cross_entropy(
    n_TD: torch.Tensor,
    head_VD: torch.Tensor,
    targets_T: torch.Tensor,
    totals: StepTotals,
    *,
    chunk_tokens: int = 0,
) -> torch.Tensor:
    """Return sum over valid targets of -log softmax(n @ head^T)[target] / totals.valid_targets.

    Log-softmax and sum are fp32 (fp64 for fp64). Targets equal to IGNORED count for nothing; with
    no valid target the loss and its gradients are exactly 0. `chunk_tokens` > 0 computes logits and
    gradients in chunks of that many tokens, in the forward pass, so that [T, V] never exists; the
    head's gradient is summed over chunks in fp32. Each term is that of the unchunked loss; sums may
    differ by rounding.
    """
    divisor = max(totals.valid_targets, 1)
    if chunk_tokens == 0 or n_TD.shape[0] <= chunk_tokens:
        return _summed_cross_entropy(n_TD, head_VD, targets_T) / divisor
    loss = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        n_TD, head_VD, targets_T, chunk_tokens
    )
    return cast(torch.Tensor, loss) / divisor


def sequence_balance_loss(routing: Routing, sequences: int, totals: StepTotals) -> torch.Tensor:
    """Return the sum over `sequences` of their balance loss / totals.sequences.

    Of one sequence of S tokens: sum_e f_e P_e with f_e = E c_e / (K S), c_e the number of choices
    of expert e and P_e its mean probability: DeepSeek-V3 (arXiv:2412.19437) equations 17 to 20 with
    softmax scores. It is 1 when routing is uniform, whatever E and K. The tokens of `routing` are
    `sequences` sequences of equal length, one after the other.
    """
    tokens, top_k = routing.expert_TK.shape
    experts = routing.probs_TE.shape[1]
    if tokens == 0:
        return routing.probs_TE.sum()
    length = tokens // sequences
    counts_BE = routing.probs_TE.new_zeros(sequences, experts)
    chosen = routing.expert_TK.reshape(sequences, length * top_k)
    counts_BE.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=counts_BE.dtype))
    load_BE = counts_BE * (experts / (top_k * length))
    mean_probs_BE = routing.probs_TE.view(sequences, length, experts).mean(dim=1)
    return (load_BE * mean_probs_BE).sum() / totals.sequences


def micro_batch_balance_loss(
    routing: Routing, counts_E: torch.Tensor, tokens: int, totals: StepTotals
) -> torch.Tensor:
    """Return this worker's part of its micro-batch's balance loss / totals.micro_batches.

    As for a sequence, but over all `tokens` tokens of the micro-batch: Switch Transformer
    (arXiv:2101.03961) equations 4 to 6, divided by K. `counts_E` holds the choices of every expert
    summed over all workers of the micro-batch and is a constant; the probabilities are the worker's
    own, so the parts of all workers add up to the micro-batch's loss.

    Scales elsewhere: Megatron-Core's `aux_loss` has this scale (E / (K T^2) sum_e c_e sum_t p_te)
    and adds up layers as well. Transformers' `load_balancing_loss_func` is K times as large and
    joins the tokens of all layers first; for one layer its value is K times this one.
    """
    return _balance(routing, counts_E, tokens) / totals.micro_batches


def global_balance_loss(
    routing: Routing, counts_E: torch.Tensor, totals: StepTotals
) -> torch.Tensor:
    """Return these tokens' part of the balance loss over all tokens of the step.

    As for a micro-batch, with `counts_E` summed over all workers and micro-batches
    (arXiv:2501.11873): experts may then specialise by sequence, as long as the batch is balanced.
    The parts of all micro-batches and workers add up to one loss, which is 1 at uniform routing.
    """
    return _balance(routing, counts_E, totals.tokens)


def _balance(routing: Routing, counts_E: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return what the tokens at hand add to sum_e f_e P_e over `tokens` tokens, of which
    `counts_E` counts all choices."""
    top_k, experts = routing.expert_TK.shape[1], routing.probs_TE.shape[1]
    load_E = counts_E.to(routing.probs_TE.dtype) * (experts / (top_k * max(tokens, 1)))
    mean_probs_E = routing.probs_TE.sum(dim=0) / max(tokens, 1)
    return (load_E * mean_probs_E).sum()


def z_loss(routing: Routing, totals: StepTotals) -> torch.Tensor:
    """Return sum over tokens of logsumexp(router logits)^2 / totals.tokens.

    ST-MoE (arXiv:2202.08906) equation 5; the same scale as Megatron-Core's `z_loss_func` when all
    micro-batches have the same size.
    """
    return routing.logits_TE.logsumexp(dim=-1).square().sum() / max(totals.tokens, 1)


def _summed_cross_entropy(
    n_TD: torch.Tensor, head_VD: torch.Tensor, targets_T: torch.Tensor
) -> torch.Tensor:
    logits_TV = F.linear(n_TD, head_VD)
    logits_TV = logits_TV.to(wide(logits_TV.dtype))
    return F.cross_entropy(logits_TV, targets_T, ignore_index=IGNORED, reduction="sum")


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Gradients are taken chunk by chunk while the logits exist, and only scaled in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        n_TD: torch.Tensor,
        head_VD: torch.Tensor,
        targets_T: torch.Tensor,
        chunk_tokens: int,
    ) -> torch.Tensor:
        exact = wide(n_TD.dtype)
        loss = torch.zeros((), dtype=exact, device=n_TD.device)
        chunks = zip(
            torch.split(n_TD, chunk_tokens), torch.split(targets_T, chunk_tokens), strict=True
        )
        if not any(ctx.needs_input_grad[:2]):
            for n, targets in chunks:
                loss += _summed_cross_entropy(n, head_VD, targets)
            return loss
        head = head_VD.detach().requires_grad_()
        grad_head_VD = torch.zeros_like(head_VD, dtype=exact)
        grads_n: list[torch.Tensor] = []
        for n_chunk, targets in chunks:
            with torch.enable_grad():
                n = n_chunk.detach().requires_grad_()
                chunk_loss = _summed_cross_entropy(n, head, targets)
            grad_n, grad_head = torch.autograd.grad(chunk_loss, (n, head))
            loss += chunk_loss.detach()
            add_to(grad_head_VD, grad_head)
            grads_n.append(grad_n)
        ctx.save_for_backward(torch.cat(grads_n), grad_head_VD)
        ctx.head_dtype = head_VD.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        grad_n_TD, grad_head_VD = ctx.saved_tensors
        return grad_n_TD * grad, (grad_head_VD * grad).to(ctx.head_dtype), None, None
