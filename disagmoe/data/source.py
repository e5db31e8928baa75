"""Where a run's batches come from: random access by step number, so that a resume is exact."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from disagmoe.config.data import DataConfig
from disagmoe.config.train import TrainConfig
from disagmoe.data.batch import Batch, next_token_batch
from disagmoe.data.mix import Mix, read_mix
from disagmoe.data.order import Cursor, SequenceSource
from disagmoe.data.prepared import PreparedData, check_vocabulary
from disagmoe.errors import ConfigError, DataError


class BatchSource(Protocol):
    """Batches by step number; every attention worker has its own and asks for the same steps."""

    def step(self, step: int) -> Batch:
        """The global batch of optimizer step `step`, counted from 0."""
        ...

    def held_out(self) -> Iterator[Batch]:
        """All held-out sequences once, in batches; none when the run holds nothing out."""
        ...


class PreparedSource:
    """Batches of prepared data: step i holds the sequences [i * B, (i + 1) * B) of the order.

    Data repeats for as many epochs as the steps need, each in a new order.
    """

    def __init__(self, sources: list[SequenceSource], mix: Mix, batch_size: int) -> None:
        self._sources = sources
        self._mix = mix
        self._batch_size = batch_size

    @classmethod
    def open(cls, data: DataConfig, train: TrainConfig, *, vocab_size: int) -> "PreparedSource":
        """Open what the config names; `vocab_size` is the model's.

        Raises DataError for data that cannot be read or is too small, and ConfigError for data that
        does not fit the model or each other.
        """
        opened = [PreparedData.open(path) for path in data.paths]
        _check_together(opened, data.weights)
        for prepared in opened:
            check_vocabulary(prepared, vocab_size)
        mix = Mix(data.weights or [float(prepared.tokens) for prepared in opened])
        held_out = mix.counts(train.eval.sequences if train.eval.every else 0)
        sources = [
            SequenceSource(
                prepared,
                sequence_length=train.sequence_length,
                seed=train.seed,
                held_out=sequences,
            )
            for prepared, sequences in zip(opened, held_out, strict=True)
        ]
        return cls(sources, mix, train.global_batch_size)

    def step(self, step: int) -> Batch:
        """The global batch of step `step`: [B, S]."""
        start = step * self._batch_size
        rows = read_mix(self._mix, self._sources, start, self._batch_size)
        return next_token_batch(torch.from_numpy(rows))

    def held_out(self) -> Iterator[Batch]:
        """Held-out sequences, one source after the other, at most B per batch."""
        for source in self._sources:
            rows = torch.from_numpy(source.held_out())
            for part in rows.split(self._batch_size) if len(rows) else ():
                yield next_token_batch(part)

    def cursors(self, step: int) -> list[Cursor]:
        """Where each path stands before step `step`; a checkpoint keeps it for the reader."""
        counts = self._mix.counts(step * self._batch_size)
        pairs = zip(self._sources, counts, strict=True)
        return [Cursor.at(count, source.per_epoch) for source, count in pairs]

    def fingerprints(self) -> list[str]:
        """Hash of the tokens of each path; a resume compares them."""
        return [source.data.fingerprint for source in self._sources]


@dataclass(frozen=True, slots=True)
class FixedSource:
    """Batches given one by one: any lengths, any ignored targets. For tests and comparisons."""

    batches: Sequence[Batch]
    held_out_batches: Sequence[Batch] = ()

    def step(self, step: int) -> Batch:
        """Batch `step`; raises DataError past the last one."""
        if not 0 <= step < len(self.batches):
            raise DataError(f"step {step}: only {len(self.batches)} batches were given")
        return self.batches[step]

    def held_out(self) -> Iterator[Batch]:
        """The batches given as held out."""
        return iter(self.held_out_batches)


def _check_together(opened: list[PreparedData], weights: list[float]) -> None:
    if weights and len(weights) != len(opened):
        raise ConfigError(
            f"data.weights has {len(weights)} values for {len(opened)} data.paths; give one per "
            "path, or none to weigh by size"
        )
    first = opened[0]
    for other in opened[1:]:
        if other.manifest.tokenizer.sha256 != first.manifest.tokenizer.sha256:
            raise ConfigError(
                f"data.paths: {first.path} and {other.path} have different tokenizers; prepare "
                "both with the same tokenizer.json"
            )
