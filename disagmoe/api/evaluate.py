"""The loss of a checkpoint on prepared data, in one process that holds the whole model.

Shape suffixes: B sequences of a batch, S positions.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from disagmoe.checkpoint.find import find
from disagmoe.checkpoint.whole import whole_store
from disagmoe.config.run import RunConfig
from disagmoe.data.batch import Batch, count_valid, next_token_batch
from disagmoe.data.prepared import PreparedData, check_vocabulary
from disagmoe.errors import DataError
from disagmoe.model.block import head_loss
from disagmoe.model.losses import StepTotals
from disagmoe.model.params import HeadParams
from disagmoe.model.transformer import hidden_states

_TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was found."""

    checkpoint: str
    data: str
    loss: float
    """Cross-entropy per target, in nats."""
    perplexity: float
    targets: int
    sequences: int

    def as_json(self) -> dict[str, Any]:
        """The object that `disagmoe evaluate --json` prints."""
        return asdict(self)


def evaluate(
    checkpoint: str,
    data: str,
    *,
    sequences: int = 0,
    sequence_length: int = 0,
    batch_size: int = 1,
    precision: str = "fp32",
    report: Callable[[int, int], None] = lambda done, of: None,
) -> Evaluation:
    """Return the loss of the checkpoint `D[@STEP]` on the prepared data in `data`.

    Documents are read in the stored order, cut into sequences of `sequence_length` targets (0: as
    the run had), of which the first `sequences` count (0: all). `batch_size` changes how fast it
    goes and nothing else. The run's `data.document_masks` and the model's settings hold.

    Raises CheckpointError, DataError or ConfigError where something cannot be read or does not fit.
    """
    found = find(checkpoint)
    config = found.manifest.run_config()
    prepared = PreparedData.open(data)
    check_vocabulary(prepared, config.model.vocab_size)
    length = sequence_length or config.train.sequence_length
    rows = _rows(prepared, length, sequences)
    store = whole_store(found, config.model, _TYPES[precision])
    end = prepared.eod if config.data.document_masks else None
    total, targets = 0.0, 0
    for start in range(0, len(rows), batch_size):
        batch = next_token_batch(rows[start : start + batch_size], end_of_document=end)
        for loss, count in _losses(store, config, batch):
            total += loss
            targets += count
        report(min(start + batch_size, len(rows)), len(rows))
    loss = total / max(targets, 1)
    return Evaluation(str(found.place), data, loss, math.exp(loss), targets, len(rows))


def _rows(data: PreparedData, length: int, sequences: int) -> torch.Tensor:
    """Return sequences of `length` + 1 tokens [B, S + 1]; the last token of one is the first of
    the next, so that every token but the very first is a target once."""
    available = (data.tokens - 1) // length
    count = min(sequences or available, available)
    if count == 0:
        raise DataError(
            f"{data.path}: {data.tokens} tokens hold no sequence of {length} targets; use a "
            "shorter sequence length"
        )
    needed = count * length + 1
    tokens = torch.empty(needed, dtype=torch.int64)
    at = 0
    for index in range(data.documents):
        if at == needed:
            break
        document = torch.from_numpy(data.document(index)[: needed - at].astype("int64"))
        tokens[at : at + len(document)] = document
        at += len(document)
    return tokens.unfold(0, length + 1, length)


@torch.no_grad()
def _losses(
    store: dict[str, torch.Tensor], config: RunConfig, batch: Batch
) -> Iterator[tuple[float, int]]:
    """Yield the summed loss and the number of targets of each sequence, so that sums do not depend
    on how many sequences a batch has."""
    model = config.model
    h_TD, _ = hidden_states(store, model, batch.tokens_BS, documents=batch.documents)
    head = HeadParams.read(store, model)
    one = StepTotals(valid_targets=1, tokens=1, sequences=1, micro_batches=1)
    chunk_tokens = config.train.loss.head_tokens(model.vocab_size)
    parts = h_TD.split(batch.tokens_BS.shape[1])
    for h_SD, targets_S in zip(parts, batch.targets_BS, strict=True):
        loss = head_loss(head, h_SD, targets_S, model, one, chunk_tokens=chunk_tokens)
        yield float(loss), count_valid(targets_S)
