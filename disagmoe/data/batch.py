"""A batch, its targets, and how it is cut into micro-batches and workers' parts.

Shape suffixes: B sequences of a batch, S tokens that are predicted per sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from disagmoe.config.shares import bounds
from disagmoe.model import losses
from disagmoe.model.mixing import Documents

IGNORED = losses.IGNORED
"""Target that no loss is computed for."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Input tokens and, at each position, the token that follows."""

    tokens_BS: torch.Tensor
    """Token ids, int64."""
    targets_BS: torch.Tensor
    """Next tokens, int64; -100 is ignored."""
    starts_BS: torch.Tensor | None = None
    """Where documents begin that are kept apart; None where all of a sequence sees each other."""

    def __post_init__(self) -> None:
        for name, tensor in (("tokens", self.tokens_BS), ("targets", self.targets_BS)):
            if tensor.dtype is not torch.int64 or tensor.dim() != 2:
                raise ValueError(
                    f"{name} are {tensor.dtype} with shape {tuple(tensor.shape)}; expected int64 "
                    "and two dimensions, sequences and positions"
                )
        if self.tokens_BS.shape != self.targets_BS.shape:
            shapes = f"{tuple(self.tokens_BS.shape)} and {tuple(self.targets_BS.shape)}"
            raise ValueError(f"tokens and targets have shapes {shapes}; expected equal ones")

    @property
    def sequences(self) -> int:
        """Number of sequences, B."""
        return int(self.tokens_BS.shape[0])

    def rows(self, start: int, stop: int) -> "Batch":
        """Sequences [start, stop), as views."""
        starts_BS = None if self.starts_BS is None else self.starts_BS[start:stop]
        return Batch(self.tokens_BS[start:stop], self.targets_BS[start:stop], starts_BS)

    @property
    def documents(self) -> Documents | None:
        """The documents that are kept apart."""
        return None if self.starts_BS is None else Documents.of(self.starts_BS)


def join_batches(batches: Sequence[Batch]) -> Batch:
    """All sequences of `batches`, one or more, in order."""
    starts = [batch.starts_BS for batch in batches if batch.starts_BS is not None]
    return Batch(
        torch.cat([batch.tokens_BS for batch in batches]),
        torch.cat([batch.targets_BS for batch in batches]),
        torch.cat(starts) if starts else None,
    )


def next_token_batch(
    rows: torch.Tensor, ignored: torch.Tensor | None = None, *, end_of_document: int | None = None
) -> Batch:
    """Batch of S predictions from rows of S + 1 tokens: [B, S + 1] int64.

    With `end_of_document`, the last token of every document, documents are kept apart, and what
    follows that token is not predicted from it.

    `ignored` marks tokens of `rows` that are not to be learned, for example those of a prompt: the
    prediction of a marked token is ignored, not the prediction that is made at it.
    """
    targets = rows[:, 1:]
    if ignored is not None:
        targets = targets.masked_fill(ignored[:, 1:], IGNORED)
    tokens = rows[:, :-1].contiguous()
    if end_of_document is None:
        return Batch(tokens, targets.contiguous())
    ends = tokens == end_of_document
    starts = torch.zeros_like(ends)
    starts[:, 1:] = ends[:, :-1]
    return Batch(tokens, targets.masked_fill(ends, IGNORED), starts)


def count_valid(targets: torch.Tensor) -> int:
    """Number of targets that are not ignored."""
    return int((targets != IGNORED).sum())


def micro_batch_bounds(sequences: int, micro_batch_size: int) -> list[tuple[int, int]]:
    """[start, stop) of each micro-batch; the last one is smaller when the size does not divide."""
    starts = range(0, sequences, micro_batch_size)
    return [(start, min(start + micro_batch_size, sequences)) for start in starts]


def split_micro_batches(batch: Batch, micro_batch_size: int) -> list[Batch]:
    """The micro-batches of a step's batch where there is one ring, in order."""
    return ring_micro_batches(batch, micro_batch_size, 0, 1)


def ring_micro_batches(batch: Batch, micro_batch_size: int, ring: int, rings: int) -> list[Batch]:
    """The micro-batches of one ring: its contiguous part of the batch, cut up. All rings have
    equally many, so the last one may be empty."""
    start, stop = bounds(batch.sequences, [1.0] * rings, ring)
    longest = -(-batch.sequences // rings)
    cuts = micro_batch_bounds(longest, micro_batch_size)
    return [batch.rows(min(start + a, stop), min(start + b, stop)) for a, b in cuts]


def worker_part(micro_batch: Batch, weights: Sequence[float], rank: int) -> Batch:
    """The part of one micro-batch that attention worker `rank` handles: contiguous whole sequences
    in proportion to `weights`, one per worker; may be empty."""
    return micro_batch.rows(*bounds(micro_batch.sequences, weights, rank))
