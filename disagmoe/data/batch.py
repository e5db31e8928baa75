"""Batches, and how one is cut into micro-batches and into the parts of attention workers.

Letters: B sequences, S positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

IGNORED = -100
"""Target of a position that is not learned from."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Input tokens and, at each position, the token to predict (or IGNORED); int64."""

    tokens_BS: torch.Tensor
    targets_BS: torch.Tensor

    def rows(self, start: int, stop: int) -> "Batch":
        """Return sequences `start` to `stop` as views."""
        return Batch(self.tokens_BS[start:stop], self.targets_BS[start:stop])


class BatchSource(Protocol):
    """Data of a run by step number; random access, so that a resume is exact."""

    def step(self, step: int) -> Batch:
        """Return the global batch of optimizer step `step`, counted from 0."""

    def held_out(self) -> Batch:
        """Return all held-out sequences."""


@dataclass(frozen=True, slots=True)
class FixedSource:
    """Batches from memory, in a cycle; for tests and for `disagmoe invariance`."""

    batches: Sequence[Batch]
    evaluation: Batch | None = None

    def step(self, step: int) -> Batch:
        """Return batch `step`, from the start again after the last one."""
        return self.batches[step % len(self.batches)]

    def held_out(self) -> Batch:
        """Return the evaluation batch. Raises ValueError where there is none."""
        if self.evaluation is None:
            raise ValueError("this source has no held-out sequences")
        return self.evaluation


def count_valid(targets_BS: torch.Tensor) -> int:
    """Return the number of targets that are not IGNORED."""
    return int((targets_BS != IGNORED).sum())


def micro_batches(batch: Batch, size: int) -> list[Batch]:
    """Cut `batch` into micro-batches of `size` sequences; the last one may be smaller."""
    sequences = len(batch.tokens_BS)
    return [batch.rows(start, min(start + size, sequences)) for start in range(0, sequences, size)]


def worker_part(micro_batch: Batch, workers: int, rank: int) -> Batch:
    """Return the sequences of attention worker `rank` of `workers`: contiguous, the larger shares
    first; empty when there are fewer sequences than workers."""
    share, larger = divmod(len(micro_batch.tokens_BS), workers)
    start = rank * share + min(rank, larger)
    return micro_batch.rows(start, start + share + (rank < larger))
