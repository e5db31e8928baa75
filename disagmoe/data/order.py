"""The deterministic order of training: which tokens are sequence i of epoch e.

An epoch is all training documents once, in a permutation of their own (epoch 0 is shuffled too),
laid end to end. They are cut into tokens [i * S, i * S + S + 1): S + 1 tokens give S predictions,
and the last token of one sequence is the first of the next. Tokens that do not fill a last sequence
are not seen in that epoch. The sequences of an epoch are read in a permutation of their own, so
that a batch mixes documents. Everything is a function of (documents, S, seed) and the position:
there is no state to restore but a cursor.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from disagmoe.data.prepared import Int64s, PreparedData
from disagmoe.errors import DataError


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """The next sequence to read: `position` counts the sequences of `epoch`, both from 0."""

    epoch: int = 0
    position: int = 0

    @classmethod
    def at(cls, sequences: int, per_epoch: int) -> "Cursor":
        """Cursor after `sequences` sequences of a source with `per_epoch` of them per epoch."""
        return cls(*divmod(sequences, per_epoch))

    def count(self, per_epoch: int) -> int:
        """Sequences before this cursor; the inverse of `at`."""
        return self.epoch * per_epoch + self.position

    def advance(self, sequences: int, per_epoch: int) -> "Cursor":
        """Cursor `sequences` later."""
        return Cursor.at(self.count(per_epoch) + sequences, per_epoch)


DOCUMENTS, SEQUENCES = 0, 1
"""What a permutation orders; each has random numbers of its own."""


def permutation(count: int, *, seed: int, epoch: int, of: int = DOCUMENTS) -> Int64s:
    """Order of `count` documents or sequences in `epoch`, a pure function of its arguments.

    Sorts 64-bit numbers of the counter-based generator Philox (Salmon et al. 2011) with key (seed,
    epoch) and a counter that starts at (0, 0, 0, of). numpy keeps the stream of its bit generators
    across versions (NEP 19), not that of `Generator.permutation`.
    """
    key = np.array([seed, epoch], dtype=np.uint64)
    counter = np.array([0, 0, 0, of], dtype=np.uint64)
    numbers = np.random.Philox(key=key, counter=counter).random_raw(count)
    return np.argsort(numbers, kind="stable").astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Epoch:
    """Order of the documents, where each starts in it, and the order of the sequences."""

    documents: Int64s
    starts: Int64s
    sequences: Int64s


class SequenceSource:
    """Sequences of S + 1 tokens from one prepared directory, without its held-out documents.

    The held-out sequences come from the last documents in the stored order, as few whole documents
    as hold `held_out` sequences; these documents are never trained on.
    """

    def __init__(
        self, data: PreparedData, *, sequence_length: int, seed: int, held_out: int = 0
    ) -> None:
        """Raises DataError when the data is too small for one training sequence beside those."""
        self.data = data
        self.sequence_length = sequence_length
        self._seed = seed
        self._held_out = held_out
        self._documents = _training_documents(data, sequence_length, held_out)
        self._lengths = np.diff(data.starts[: self._documents + 1])
        self.per_epoch = _sequences_in(int(self._lengths.sum()), sequence_length)
        self._epochs: dict[int, _Epoch] = {}

    @property
    def order(self) -> str:
        """Hash of all that decides the order: equal orders have equal sequences at each place."""
        decides = (self.data.fingerprint, self.sequence_length, self._seed, self._documents)
        return hashlib.sha256(repr(decides).encode()).hexdigest()[:16]

    def read(self, start: int, count: int) -> Int64s:
        """Sequences [start, start + count) counted over all epochs: [count, S + 1]."""
        rows = np.empty((count, self.sequence_length + 1), dtype=np.int64)
        for i in range(count):
            self._fill(rows[i], Cursor.at(start + i, self.per_epoch))
        return rows

    def held_out(self) -> Int64s:
        """The held-out sequences, in the stored order: [held_out, S + 1]."""
        S = self.sequence_length
        first = int(self.data.starts[self._documents])
        rows = [self.data.read(first + i * S, S + 1) for i in range(self._held_out)]
        return np.stack(rows) if rows else np.zeros((0, S + 1), dtype=np.int64)

    def _fill(self, row: Int64s, cursor: Cursor) -> None:
        epoch = self._epoch(cursor.epoch)
        order, starts = epoch.documents, epoch.starts
        position = int(epoch.sequences[cursor.position]) * self.sequence_length
        place = int(np.searchsorted(starts, position, side="right")) - 1
        filled = 0
        while filled < len(row):
            tokens = self.data.document(int(order[place]))[position - int(starts[place]) :]
            part = tokens[: len(row) - filled]
            row[filled : filled + len(part)] = part
            filled += len(part)
            position += len(part)
            place += 1

    def _epoch(self, epoch: int) -> _Epoch:
        if epoch not in self._epochs:
            # A batch may straddle two epochs; more are never needed at once.
            self._epochs = {e: v for e, v in self._epochs.items() if abs(e - epoch) == 1}
            order = permutation(self._documents, seed=self._seed, epoch=epoch)
            starts = np.zeros(self._documents + 1, dtype=np.int64)
            np.cumsum(self._lengths[order], out=starts[1:])
            sequences = permutation(self.per_epoch, seed=self._seed, epoch=epoch, of=SEQUENCES)
            self._epochs[epoch] = _Epoch(order, starts, sequences)
        return self._epochs[epoch]


def _sequences_in(tokens: int, sequence_length: int) -> int:
    return max(tokens - 1, 0) // sequence_length


def _training_documents(data: PreparedData, sequence_length: int, held_out: int) -> int:
    """Number of documents that come before the held-out ones."""
    documents = data.documents
    if held_out:
        needed = held_out * sequence_length + 1
        documents = int(np.searchsorted(data.starts, data.tokens - needed, side="right")) - 1
    left = int(data.starts[documents]) if documents >= 0 else 0
    if _sequences_in(left, sequence_length) < 1:
        beside = f" beside {held_out} held-out ones" if held_out else ""
        raise DataError(
            f"{data.path}: {data.tokens} tokens in {data.documents} documents hold no training "
            f"sequence of {sequence_length} tokens{beside}; prepare more data, or lower "
            "train.sequence_length" + (" or train.eval.sequences" if held_out else "")
        )
    return documents
