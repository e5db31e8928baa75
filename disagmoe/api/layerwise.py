"""The network of a checkpoint for forward passes, within a given memory: whole, or by layers.

Shape suffixes: B sequences of a batch, S positions, D hidden.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from disagmoe.checkpoint.find import Found
from disagmoe.checkpoint.whole import end_bytes, end_store, layer_bytes, layer_store, whole_store
from disagmoe.config.model import ModelConfig
from disagmoe.data.batch import Batch
from disagmoe.errors import ConfigError
from disagmoe.model import names
from disagmoe.model.block import embed
from disagmoe.model.params import Store
from disagmoe.model.rope import Rope
from disagmoe.model.transformer import layer_output
from disagmoe.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How sequences go through the network."""

    count: int
    """Of all sequences."""
    batch_size: int
    at_a_time: int
    """Sequences that go through a layer before the next one is read."""
    by_layers: bool
    """One layer is in memory instead of all."""


def passes(
    model: ModelConfig,
    dtype: torch.dtype,
    length: int,
    *,
    count: int,
    batch_size: int,
    memory_bytes: int,
) -> Passes:
    """Return the fastest way in which weights and hidden states take at most `memory_bytes`.

    Raises ConfigError where not even one layer and the hidden states of one batch fit.
    """
    layers = [layer_bytes(model, dtype, layer) for layer in range(model.layers)]
    ends = end_bytes(model, dtype)
    sequence = length * model.hidden * dtype.itemsize
    batch = min(batch_size, count) * sequence
    if ends + sum(layers) + batch <= memory_bytes:
        return Passes(count=count, batch_size=batch_size, at_a_time=batch_size, by_layers=False)
    least = ends + max(layers) + batch
    if least > memory_bytes:
        raise ConfigError(
            f"the evaluation may take {format_bytes(memory_bytes)}, but embedding, LM head, one "
            f"layer and one batch of hidden states take {format_bytes(least)}; use --precision "
            "bf16, a smaller --batch-size, or more memory (--memory-gib)"
        )
    batches = (memory_bytes - ends - max(layers)) // (batch_size * sequence)
    return Passes(
        count=count, batch_size=batch_size, at_a_time=max(1, batches) * batch_size, by_layers=True
    )


class Network:
    """The network of a checkpoint."""

    def __init__(
        self, found: Found, model: ModelConfig, dtype: torch.dtype, *, by_layers: bool
    ) -> None:
        """Raises CheckpointError, now or later, where something cannot be read."""
        self.model = model
        self.weight_reads = 0 if by_layers else 1
        self._found, self._dtype = found, dtype
        self._whole = None if by_layers else whole_store(found, model, dtype)
        self.ends: Store = self._whole or end_store(found, model, dtype)
        """Embedding, final norm and LM head, perhaps among others."""

    def hidden_states(
        self, batches: list[Batch], report: Callable[[int], None] = lambda layers: None
    ) -> list[torch.Tensor]:
        """Return the residual stream [B, S, D] of each batch after the last layer. All sequences
        are of one length. `report` is told after each layer how many are done."""
        streams = [embed(self.ends[names.EMBED], batch.tokens_BS) for batch in batches]
        _, length, _ = streams[0].shape
        rope = Rope.of(self.model, length, streams[0].dtype, streams[0].device)
        for layer in range(self.model.layers):
            self._through(layer, batches, streams, rope)
            report(layer + 1)
        self.weight_reads += self._whole is None
        return streams

    def _through(
        self, layer: int, batches: list[Batch], streams: list[torch.Tensor], rope: Rope
    ) -> None:
        """Replace each stream by what `layer` makes of it; its weights are gone afterwards."""
        store = self._whole or layer_store(self._found, self.model, self._dtype, layer)
        for index, batch in enumerate(batches):
            streams[index], _ = layer_output(
                store, self.model, streams[index], rope, layer=layer, documents=batch.documents
            )
