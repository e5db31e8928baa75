"""A worker's parameters and the exact sums of their gradients, in segments that are reduced alike.

A segment is what the same set of workers holds alike: attention parameters (all workers of the
attention role), what both sides share (norms that are applied on both sides of the cut), and the
worker's experts. Values and gradient sums of a segment lie in one flat buffer each.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from disagmoe.config.model import ModelConfig
from disagmoe.model import names
from disagmoe.model.init import initial_store
from disagmoe.model.partition import (
    LocalTensor,
    Part,
    attention_tensors,
    expert_tensors,
)
from disagmoe.model.precision import add_to, wide
from disagmoe.schedule.layout import Group, Layout, Side, Worker


class SegmentKind(StrEnum):
    """Who else holds the same parameters."""

    ATTENTION = "attention"
    SHARED = "shared"
    EXPERTS = "experts"


def local_tensors(
    config: ModelConfig, layout: Layout, worker: Worker, experts: Sequence[range]
) -> dict[SegmentKind, tuple[LocalTensor, ...]]:
    """The tensors that `worker` holds, by segment; a segment may be empty. `experts` are those of
    each rank of an expert group."""
    out: dict[SegmentKind, tuple[LocalTensor, ...]] = dict.fromkeys(SegmentKind, ())
    shared = _shared_norms(config, layout, worker.group)
    for role in layout.roles_of(worker.group):
        layers = layout.layers_of(role)
        if role.side is Side.ATTENTION:
            tensors = attention_tensors(
                config, layers, embedding=role == layout.embedding, head=role == layout.head
            )
            out[SegmentKind.ATTENTION] = tuple(
                tensor for tensor in tensors if tensor.name not in shared
            )
        else:
            out[SegmentKind.EXPERTS] = expert_tensors(config, layers, experts[worker.rank])
    out[SegmentKind.SHARED] = tuple(shared.values())
    return out


def _shared_norms(config: ModelConfig, layout: Layout, group: Group) -> dict[str, LocalTensor]:
    """With a fused residual, rows travel un-normalised and both sides apply the norm before the
    experts: attention for its router, experts for their rows."""
    if not layout.fused_residual:
        return {}
    shape = (config.hidden,)
    leaves = [names.attention_name(layer, "moe_norm") for layer in layout.layers_of(group)]
    return {name: LocalTensor(name, shape, (Part(name, shape),)) for name in leaves}


def used_twice(config: ModelConfig, layout: Layout, worker: Worker) -> frozenset[str]:
    """Names of tensors that two ops of `worker` differentiate: a tied embedding, and with a fused
    residual the norms of a colocated worker."""
    roles = layout.roles_of(worker.group)
    twice = set(_shared_norms(config, layout, worker.group)) if len(roles) > 1 else set()
    if config.tied_embeddings and {layout.embedding, layout.head} <= set(roles):
        twice.add(names.EMBED)
    return frozenset(twice)


@dataclass(frozen=True, slots=True)
class Segment:
    """Parameters that the same workers hold alike; flat buffers in the order of `tensors`."""

    kind: SegmentKind
    tensors: tuple[LocalTensor, ...]
    flat_value: torch.Tensor
    flat_grad: torch.Tensor

    def slices(self, start: int, stop: int) -> dict[str, tuple[int, int]]:
        """Local names of the tensors that reach into [start, stop) of the flat buffers, each with
        the bounds of what lies in it."""
        out = {}
        at = 0
        for tensor, size in zip(self.tensors, self.sizes, strict=True):
            first, last = max(start, at), min(stop, at + size)
            if first < last:
                out[tensor.name] = (first, last)
            at += size
        return out

    @property
    def sizes(self) -> list[int]:
        """Elements of each tensor."""
        return [torch.Size(tensor.shape).numel() for tensor in self.tensors]

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """`flat` by local name."""
        parts = flat.split(self.sizes)
        return {
            tensor.name: part.view(tensor.shape)
            for tensor, part in zip(self.tensors, parts, strict=True)
        }


class Parameters:
    """All segments of a worker; values and gradient sums by local name."""

    def __init__(
        self,
        tensors: Mapping[SegmentKind, Sequence[LocalTensor]],
        twice: Collection[str] = (),
        *,
        seed: int,
        std: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.segments: dict[SegmentKind, Segment] = {}
        self.values: dict[str, torch.Tensor] = {}
        self.grads: dict[str, torch.Tensor] = {}
        for kind, members in tensors.items():
            store = initial_store(members, seed=seed, std=std, dtype=dtype, device=device)
            flat = [value.flatten() for value in store.values()]
            flat_value = torch.cat(flat) if flat else torch.empty(0, dtype=dtype, device=device)
            flat_grad = torch.zeros(len(flat_value), dtype=wide(dtype), device=device)
            segment = Segment(kind, tuple(members), flat_value, flat_grad)
            self.segments[kind] = segment
            self.values |= segment.views(flat_value)
            self.grads |= segment.views(flat_grad)
        for value in self.values.values():
            value.requires_grad_()
        # What is differentiated twice collects its two uses apart: which of them adds first depends
        # on the schedule, and the bits of the sum must not.
        self._second = {name: torch.zeros_like(self.grads[name]) for name in twice}

    def accumulate(self, local_names: Iterable[str], grads: Iterable[torch.Tensor]) -> None:
        """Add one micro-batch's gradients to the sums."""
        for name, grad in zip(local_names, grads, strict=True):
            add_to(self.grads[name], grad)

    def second_grad(self, name: str) -> torch.Tensor:
        """Where the second use of a tensor collects its gradient: the embedding lookup of a tied
        matrix, the experts' use of a norm."""
        return self._second.get(name, self.grads[name])

    def join_uses(self) -> None:
        """Add the second uses to the first."""
        for name, second in self._second.items():
            self.grads[name].add_(second)
            second.zero_()

    def zero_grad(self) -> None:
        """Forget the sums."""
        for segment in self.segments.values():
            segment.flat_grad.zero_()

    def global_values(self) -> dict[str, torch.Tensor]:
        """Views of all values by global parameter name."""
        out: dict[str, torch.Tensor] = {}
        for segment in self.segments.values():
            for local in segment.tensors:
                out.update(local.split(self.values[local.name].detach()))
        return out
