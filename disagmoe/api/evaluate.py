"""The loss of a checkpoint on prepared data, in one process.

Shape suffixes: B sequences of a batch, S positions, T tokens of a batch.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from disagmoe.api.layerwise import Network, Passes, passes
from disagmoe.checkpoint.find import find
from disagmoe.config.run import RunConfig
from disagmoe.data.batch import Batch, count_valid, next_token_batch
from disagmoe.data.prepared import PreparedData, check_vocabulary
from disagmoe.errors import DataError
from disagmoe.model.block import head_loss
from disagmoe.model.losses import StepTotals
from disagmoe.model.params import HeadParams
from disagmoe.model.precision import TYPES
from disagmoe.runtime.memory import available_memory_bytes


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
    weight_reads: int
    """How often the checkpoint was read: once, or more where it does not fit into memory."""

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
    memory_bytes: int = 0,
    report: Callable[[float], None] = lambda share: None,
) -> Evaluation:
    """Return the loss of the checkpoint `D[@STEP]` on the prepared data in `data`.

    Documents are read in the stored order, cut into sequences of `sequence_length` targets (0: as
    the run had), of which the first `sequences` count (0: all). `batch_size` changes how fast it
    goes and nothing else. The run's `data.document_masks` and the model's settings hold.

    Weights and hidden states take at most `memory_bytes` (0: three quarters of what is free), and
    the activations of one batch come on top. A model that does not fit is read layer by layer, as
    often as hidden states ask for; that changes no bit of the result. `report` is told the share
    that is done.

    Raises CheckpointError, DataError or ConfigError where something cannot be read or does not fit.
    """
    found = find(checkpoint)
    config = found.manifest.run_config()
    prepared = PreparedData.open(data)
    check_vocabulary(prepared, config.model.vocab_size)
    length = sequence_length or config.train.sequence_length
    count = _sequences(prepared, length, sequences)
    plan = passes(
        config.model,
        TYPES[precision],
        length,
        count=count,
        batch_size=batch_size,
        memory_bytes=memory_bytes or available_memory_bytes() * 3 // 4,
    )
    network = Network(found, config.model, TYPES[precision], by_layers=plan.by_layers)
    chunk = config.train.loss.head_tokens(config.model.vocab_size)
    total, targets = 0.0, 0
    for start, batches in _windows(prepared, config, length, plan):
        size = sum(batch.sequences for batch in batches)

        def advance(layers: int, start: int = start, size: int = size) -> None:
            report((start + size * layers / config.model.layers) / count)

        for loss, valid in _losses(network, batches, chunk, advance):
            total += loss
            targets += valid
    loss = total / max(targets, 1)
    return Evaluation(
        str(found.place), data, loss, math.exp(loss), targets, count, network.weight_reads
    )


def _sequences(data: PreparedData, length: int, asked: int) -> int:
    """Return how many sequences there are; the last token of one is the first of the next, so that
    every token but the very first is a target once."""
    available = (data.tokens - 1) // length
    if available < 1:
        raise DataError(
            f"{data.path}: {data.tokens} tokens hold no sequence of {length} targets; use a "
            "shorter sequence length"
        )
    return min(asked or available, available)


def _windows(
    data: PreparedData, config: RunConfig, length: int, plan: Passes
) -> Iterator[tuple[int, list[Batch]]]:
    """Yield the number of sequences before each window, and its batches."""
    end = data.eod if config.data.document_masks else None
    for start in range(0, plan.count, plan.at_a_time):
        batches = []
        for first in range(start, min(start + plan.at_a_time, plan.count), plan.batch_size):
            size = min(plan.batch_size, plan.count - first)
            tokens = torch.from_numpy(data.read(first * length, size * length + 1))
            rows = tokens.unfold(0, length + 1, length)
            batches.append(next_token_batch(rows, end_of_document=end))
        yield start, batches


@torch.no_grad()
def _losses(
    network: Network, batches: list[Batch], chunk_tokens: int, advance: Callable[[int], None]
) -> Iterator[tuple[float, int]]:
    """Yield the summed loss and the number of targets of each sequence, so that sums do not depend
    on how many sequences a batch has."""
    model = network.model
    one = StepTotals(valid_targets=1, tokens=1, sequences=1, micro_batches=1)
    head = HeadParams.read(network.ends, model)
    streams = network.hidden_states(batches, advance)
    for batch, h_BSD in zip(batches, streams, strict=True):
        for h_SD, targets_S in zip(h_BSD, batch.targets_BS, strict=True):
            loss = head_loss(head, h_SD, targets_S, model, one, chunk_tokens=chunk_tokens)
            yield float(loss), count_valid(targets_S)
