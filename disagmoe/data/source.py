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
from disagmoe.data.position import DataPosition, Origin, PathPosition, origin_after
from disagmoe.data.prepared import Int64s, PreparedData, check_vocabulary
from disagmoe.errors import ConfigError, DataError


class BatchSource(Protocol):
    """Batches by step number; every attention worker has its own and asks for the same steps."""

    def step(self, step: int) -> Batch:
        """The global batch of optimizer step `step`, counted from 0."""
        ...

    def held_out(self) -> Iterator[Batch]:
        """All held-out sequences once, in batches; none when the run holds nothing out."""
        ...

    def position(self, step: int) -> DataPosition:
        """Where the data stands before step `step`, for a checkpoint."""
        ...


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A path that has given some sequences already."""

    source: SequenceSource
    sequences: int

    def read(self, start: int, count: int) -> Int64s:
        """Sequences [start, start + count) after those: [count, S + 1]."""
        return self.source.read(self.sequences + start, count)


class PreparedSource:
    """Batches of prepared data: step i holds the sequences [i * B, (i + 1) * B) of the order.

    Data repeats for as many epochs as the steps need, each in a new order. A run that goes on from
    a checkpoint counts from its `origin` on.
    """

    def __init__(
        self,
        sources: Sequence[SequenceSource],
        weights: Sequence[float],
        batch_size: int,
        origin: Origin,
        end_of_document: int | None = None,
    ) -> None:
        """`end_of_document` keeps documents apart, see `next_token_batch`."""
        self._sources = sources
        ahead = origin.ahead or (0,) * len(sources)
        self._rest = [_Ahead(source, given) for source, given in zip(sources, ahead, strict=True)]
        self._weights = list(weights)
        self._mix = Mix(self._weights)
        self._batch_size = batch_size
        self._origin = origin
        self._end = end_of_document

    @classmethod
    def open(
        cls,
        data: DataConfig,
        train: TrainConfig,
        *,
        vocab_size: int,
        origin: Origin = Origin(),  # noqa: B008 - it is frozen
    ) -> "PreparedSource":
        """Open what the config names; `vocab_size` is the model's.

        Raises DataError for data that cannot be read or is too small, and ConfigError for data that
        does not fit the model or each other.
        """
        opened = [PreparedData.open(path) for path in data.paths]
        _check_together(opened, data.weights)
        for prepared in opened:
            check_vocabulary(prepared, vocab_size)
        weights = data.weights or [float(prepared.tokens) for prepared in opened]
        held_out = Mix(weights).counts(train.eval.sequences if train.eval.every else 0)
        sources = [
            SequenceSource(
                prepared,
                sequence_length=train.sequence_length,
                seed=train.seed,
                held_out=sequences,
            )
            for prepared, sequences in zip(opened, held_out, strict=True)
        ]
        end = opened[0].eod if data.document_masks else None
        return cls(sources, weights, train.global_batch_size, origin, end)

    def step(self, step: int) -> Batch:
        """The global batch of step `step`: [B, S]."""
        rows = read_mix(self._mix, self._rest, self._mixed(step), self._batch_size)
        return next_token_batch(torch.from_numpy(rows), end_of_document=self._end)

    def held_out(self) -> Iterator[Batch]:
        """Held-out sequences, one source after the other, at most B per batch."""
        for source in self._sources:
            rows = torch.from_numpy(source.held_out())
            for part in rows.split(self._batch_size) if len(rows) else ():
                yield next_token_batch(part, end_of_document=self._end)

    def position(self, step: int) -> DataPosition:
        """Where the data stands before step `step`."""
        mixed = self._mixed(step)
        paths = []
        for rest, given in zip(self._rest, self._mix.counts(mixed), strict=True):
            source, read = rest.source, rest.sequences + given
            cursor = Cursor.at(read, source.per_epoch)
            paths.append(
                PathPosition(
                    path=source.data.path,
                    fingerprint=source.data.fingerprint,
                    order=source.order,
                    epoch=cursor.epoch,
                    position=cursor.position,
                    sequences=read,
                )
            )
        return DataPosition(mixed=mixed, weights=self._weights, paths=paths)

    def origin_after(self, step: int, saved: DataPosition) -> tuple[Origin, list[str]]:
        """Where a run of this data goes on at `step` from what stood at `saved`, and what is new.

        For a source from the beginning. Raises DataError as `position.origin_after` does.
        """
        return origin_after(step, saved, self.position(0), self._mix.counts)

    def _mixed(self, step: int) -> int:
        return self._origin.mixed + (step - self._origin.step) * self._batch_size


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

    def position(self, step: int) -> DataPosition:
        """The number of the next batch."""
        return DataPosition(mixed=step)


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
