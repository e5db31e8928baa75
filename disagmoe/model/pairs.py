"""Moving rows to experts and back: gather by pair, and weighted sum per row in a fixed order.

Plain functions without a graph, each with its gradient beside it.

A pair is one (row, expert) choice. Pairs arrive ordered by row and, within a row, by rank of the
choice; experts want them ordered by expert. Both directions, forward and backward, sum the pairs of
a row in pair order, so that results have the same bits on every run, which `index_add_` does not
give on CUDA.

Letters: R rows, P pairs, D hidden, E local experts.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from disagmoe.model.device import count_values
from disagmoe.model.precision import wide


@dataclass(frozen=True, slots=True)
class PairPlan:
    """Index tables between rows, pairs and pairs sorted by expert ("slots")."""

    slot_of_pair_P: torch.Tensor
    pair_of_slot_P: torch.Tensor
    row_of_slot_P: torch.Tensor
    first_pair_R: torch.Tensor
    """First pair of each row; a row without pairs has the next row's first pair."""
    counts_E: torch.Tensor
    """Pairs of each local expert, int64."""

    @classmethod
    def of(
        cls, row_of_pair_P: torch.Tensor, expert_of_pair_P: torch.Tensor, *, rows: int, experts: int
    ) -> "PairPlan":
        """Sort pairs stably by local expert. `row_of_pair_P` never decreases."""
        pair_of_slot_P = torch.argsort(expert_of_pair_P, stable=True)
        slot_of_pair_P = torch.empty_like(pair_of_slot_P)
        slots_P = torch.arange(pair_of_slot_P.shape[0], device=pair_of_slot_P.device)
        slot_of_pair_P[pair_of_slot_P] = slots_P
        row_ids_R = torch.arange(rows, device=row_of_pair_P.device, dtype=row_of_pair_P.dtype)
        return cls(
            slot_of_pair_P=slot_of_pair_P,
            pair_of_slot_P=pair_of_slot_P,
            row_of_slot_P=row_of_pair_P[pair_of_slot_P],
            first_pair_R=torch.searchsorted(row_of_pair_P, row_ids_R),
            counts_E=count_values(expert_of_pair_P, experts),
        )


def gather_pairs(rows_RD: torch.Tensor, plan: PairPlan) -> torch.Tensor:
    """Return the row of every slot [P, D]."""
    return rows_RD.index_select(0, plan.row_of_slot_P)


def gather_grads(grad_PD: torch.Tensor, plan: PairPlan) -> torch.Tensor:
    """Return the gradient of the rows of `gather_pairs`: slots summed per row in the wide type."""
    return _sum_per_row(grad_PD, plan).to(grad_PD.dtype)


def combine_pairs(y_PD: torch.Tensor, gate_P: torch.Tensor, plan: PairPlan) -> torch.Tensor:
    """Return the gate-weighted sum of the slots `y_PD` per row [R, D], in the type of `y_PD`.

    `gate_P` is in pair order. Products and sums are in the wide type and rounded once.
    """
    return _sum_per_row(y_PD, plan, gate_P).to(y_PD.dtype)


def combine_grads(
    grad_RD: torch.Tensor, y_PD: torch.Tensor, gate_P: torch.Tensor, plan: PairPlan
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of `y_PD` and `gate_P` of `combine_pairs`; that of a gate is the inner
    product of the row's gradient with the expert's output."""
    exact = gate_P.dtype
    grad_PD = grad_RD.to(exact).index_select(0, plan.row_of_slot_P)
    grad_gate_P = torch.linalg.vecdot(grad_PD, y_PD.to(exact))
    grad_y_PD = grad_PD.mul_(gate_P[plan.pair_of_slot_P, None]).to(y_PD.dtype)
    return grad_y_PD, grad_gate_P[plan.slot_of_pair_P]


def _sum_per_row(
    slots_PD: torch.Tensor, plan: PairPlan, gate_P: torch.Tensor | None = None
) -> torch.Tensor:
    """Sum slots per row in pair order, in the wide type."""
    slots_PD = slots_PD.to(wide(slots_PD.dtype))
    if slots_PD.shape[0] == 0:
        return slots_PD.new_zeros(plan.first_pair_R.shape[0], slots_PD.shape[1])
    # One bag per row: the kernels walk a bag's entries in order, one thread per (bag, column).
    return F.embedding_bag(
        plan.slot_of_pair_P, slots_PD, plan.first_pair_R, mode="sum", per_sample_weights=gate_P
    )
