"""Which rows, choices and gates go to which expert worker, and how what comes back is added.

Letters: T tokens, K top-k, E experts, N expert workers, D hidden; R rows and P pairs of one worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from disagmoe.model.device import count_values, to_device, to_host
from disagmoe.model.precision import wide

Dedupe = Literal["rank", "none"]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What one attention worker, or gateway, sends to one expert worker; all int64."""

    token_R: torch.Tensor
    """Token of each row, never decreasing."""
    row_P: torch.Tensor
    """Row of each pair, never decreasing."""
    expert_P: torch.Tensor
    """Expert of each pair, counted from the worker's first."""
    choice_P: torch.Tensor
    """Place of each pair in the flattened expert_TK and gate_TK; strictly increasing."""


def plan_dispatch(
    expert_TK: torch.Tensor, ranges: Sequence[range], dedupe: Dedupe
) -> tuple[Dispatch, ...]:
    """Return what goes to each expert worker, whose experts are `ranges` (together 0 to E-1).

    `rank` sends one row per (token, worker) that the token chose, `none` one per (token, choice).
    Pairs are ordered by (token, choice). Workers that no token chose get empty tensors.
    """
    tokens, top_k = expert_TK.shape
    token_P = torch.arange(tokens * top_k, device=expert_TK.device) // top_k
    return plan_pairs(token_P, expert_TK.flatten(), [len(experts) for experts in ranges], dedupe)


def plan_pairs(
    token_P: torch.Tensor, expert_P: torch.Tensor, sizes: Sequence[int], dedupe: Dedupe
) -> tuple[Dispatch, ...]:
    """The same for any pairs of a token and an expert, both int64, in the order of tokens; of the
    experts each worker holds as many as `sizes` says. `choice_P` counts the pairs."""
    device, workers = token_P.device, len(sizes)
    first_experts = [sum(sizes[:worker]) for worker in range(workers)]
    owners = [worker for worker, size in enumerate(sizes) for _ in range(size)]
    table = to_device([*owners, *first_experts], device)
    owner_E, first_expert_N = table.split([len(owners), workers])

    owner_of_choice = owner_E[expert_P]
    choice = torch.argsort(owner_of_choice, stable=True)  # by (worker, token, choice)
    worker = owner_of_choice[choice]
    token = token_P[choice]
    starts_row = torch.ones_like(token)
    if dedupe == "rank":
        starts_row[1:] = (token[1:] != token[:-1]) | (worker[1:] != worker[:-1])
    rows_N = worker.new_zeros(workers).index_add_(0, worker, starts_row)
    first_row_N = rows_N.cumsum(0) - rows_N
    row_of_all = starts_row.cumsum(0) - 1
    row = row_of_all - first_row_N[worker]
    expert = expert_P[choice] - first_expert_N[worker]

    pairs_N = count_values(worker, workers)
    counts = to_host(torch.cat((rows_N, pairs_N)))
    rows, pairs = counts[:workers], counts[workers:]
    # pairs of one row have one token
    token_of_row = token.new_empty(sum(rows)).scatter_(0, row_of_all, token)
    parts = zip(
        torch.split(token_of_row, rows),
        torch.split(row, pairs),
        torch.split(expert, pairs),
        torch.split(choice, pairs),
        strict=True,
    )
    return tuple(Dispatch(*part) for part in parts)


def count_distinct(expert_TK: torch.Tensor, part_E: torch.Tensor) -> torch.Tensor:
    """Return how many pairs there are of a token and a part of the experts (a worker, or a host)
    that it chose, as an int64 scalar; `part_E` says the part of each expert."""
    part_TK = part_E[expert_TK].sort(dim=1).values
    return (part_TK[:, 1:] != part_TK[:, :-1]).sum() + len(part_TK)


def combine(
    residual_TD: torch.Tensor, parts: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> torch.Tensor:
    """Return `residual_TD` plus the rows that came back, each at its token.

    `parts` holds (token_R, rows_RD) of each expert worker and is added in that order, in fp32 (fp64
    for fp64), rounded once to the type of the residual. Differentiable; the gradient of a part is
    `grad_TD[token_R]`, that of the residual is the incoming gradient.
    """
    exact = wide(residual_TD.dtype)
    total_TD = residual_TD.to(exact, copy=True)
    for token_R, rows_RD in parts:
        total_TD.index_add_(0, token_R, rows_RD.to(exact))
    return total_TD.to(residual_TD.dtype)


def sum_rows(tokens: int, parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the sum of rows per token [T, D]: the gradient of n from those of the rows sent.

    `parts` as in `combine`, at least one.
    """
    rows_RD = parts[0][1]
    return combine(rows_RD.new_zeros(tokens, rows_RD.shape[1]), parts)


def place_gates(
    tokens: int, top_k: int, parts: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> torch.Tensor:
    """Return [T, K] from `parts` of (choice_P, value_P): the gradient of gate_TK.

    Every choice is in exactly one part.
    """
    values = torch.cat([value_P for _, value_P in parts])
    flat = values.new_zeros(tokens * top_k)
    flat[torch.cat([choice_P for choice_P, _ in parts])] = values
    return flat.view(tokens, top_k)


def join_rows(row_parts: Sequence[torch.Tensor], row_counts: Sequence[int]) -> torch.Tensor:
    """Return row_P over the concatenated rows of several senders, in their order.

    `row_parts` holds each sender's row_P, `row_counts` how many rows each sent.
    """
    first_row = 0
    shifted: list[torch.Tensor] = []
    for row_P, count in zip(row_parts, row_counts, strict=True):
        shifted.append(row_P + first_row)
        first_row += count
    return torch.cat(shifted)
