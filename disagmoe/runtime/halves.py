"""What an attention worker computes of layers, with a graph for the backward or without.

Letters: B sequences, S positions, T = B * S tokens, D hidden, K top-k.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from disagmoe.model.block import AttentionOut, attention_half, dense_block
from disagmoe.model.mixing import Documents
from disagmoe.model.params import AttentionParams
from disagmoe.model.rope import Rope
from disagmoe.runtime.context import Context


@dataclass(frozen=True, slots=True)
class Part:
    """This worker's share of a micro-batch, and the size of the whole."""

    tokens_BS: torch.Tensor
    targets_BS: torch.Tensor
    micro_batch_tokens: int
    documents: Documents | None = None
    """Documents that are kept apart."""

    @property
    def tokens(self) -> int:
        """Tokens of this share."""
        return self.tokens_BS.numel()


class Halves:
    """Attention halves of the layers that one worker owns, and dense layers."""

    def __init__(self, context: Context, store: Mapping[str, torch.Tensor]) -> None:
        """`store` holds parameters and balance biases: the live tensors."""
        self._context = context
        self._model = context.config.model
        self._store = store
        self._ropes: dict[int, Rope] = {}

    def half(
        self,
        layer: int,
        part: Part,
        h_TD: torch.Tensor,
        *,
        graph: bool,
        expert_TK: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, AttentionOut]:
        """Return the input of `layer` of the ring as the graph's leaf, and what comes of it.
        `expert_TK` repeats decisions."""
        shared = not self._context.shared_with_experts
        number = self._context.model_layer(layer)
        params = AttentionParams.read(self._store, self._model, number, shared=shared)
        with torch.set_grad_enabled(graph):
            h_TD, h_BSD = self._leaf(part, h_TD, graph)
            rope = self._rope(part.tokens_BS.shape[1])
            out = attention_half(
                params,
                h_BSD,
                self._model,
                rope,
                layer=number,
                documents=part.documents,
                expert_TK=expert_TK,
            )
        return h_TD, out

    def dense(
        self, part: Part, before_TD: torch.Tensor, *, graph: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the input of all dense layers as the graph's leaf, and their output."""
        with torch.set_grad_enabled(graph):
            before_TD, h_BSD = self._leaf(part, before_TD, graph)
            rope = self._rope(part.tokens_BS.shape[1])
            for layer in range(self._model.dense_layers):
                params = AttentionParams.read(self._store, self._model, layer)
                h_BSD = dense_block(
                    params, h_BSD, self._model, rope, layer=layer, documents=part.documents
                )
        return before_TD, h_BSD.flatten(0, 1)

    def _leaf(
        self, part: Part, h_TD: torch.Tensor, graph: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        h_TD = h_TD.detach().requires_grad_(graph)
        return h_TD, h_TD.view(*part.tokens_BS.shape, self._model.hidden)

    def _rope(self, positions: int) -> Rope:
        if positions not in self._ropes:
            context = self._context
            rope = Rope.of(self._model, positions, context.dtype, context.device)
            self._ropes = {positions: rope}
        return self._ropes[positions]
