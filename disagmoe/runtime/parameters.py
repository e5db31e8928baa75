"""A worker's parameters and the exact sums of their gradients, in segments that are reduced alike.

A segment is what the same set of workers holds alike: attention parameters (all workers of the
attention role), what both sides share (norms that are applied on both sides of the cut), shared
experts that live with the experts (all workers of the expert role), and the worker's experts.
Values and gradient sums of a segment lie in one flat buffer each.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    balance_tensors,
    expert_tensors,
    whole_tensors,
)
from disagmoe.model.precision import add_to, wide
from disagmoe.schedule.layout import Group, Layout, Side, Worker


class SegmentKind(StrEnum):
    """Who else holds the same parameters."""

    ATTENTION = "attention"
    SHARED = "shared"
    SHARED_EXPERTS = "shared_experts"
    EXPERTS = "experts"


def local_tensors(
    config: ModelConfig,
    layout: Layout,
    worker: Worker,
    experts: Sequence[range],
    *,
    shared_with_experts: bool = False,
) -> dict[SegmentKind, tuple[LocalTensor, ...]]:
    """The tensors that `worker` holds, by segment; a segment may be empty. `experts` are those of
    each rank of an expert group; `shared_with_experts` says where shared experts are."""
    out: dict[SegmentKind, tuple[LocalTensor, ...]] = dict.fromkeys(SegmentKind, ())
    shared = _shared_norms(config, layout, worker.group)
    for role in layout.roles_of(worker.group):
        layers = list(model_layers(config, layout, role))
        if role.side is Side.ATTENTION:
            dense = range(config.dense_layers) if role == layout.embedding else ()
            tensors = attention_tensors(
                config,
                [*dense, *layers],
                embedding=role == layout.embedding,
                head=role == layout.head,
                shared=not shared_with_experts,
            )
            out[SegmentKind.ATTENTION] = tuple(
                tensor for tensor in tensors if tensor.name not in shared
            )
        else:
            out[SegmentKind.EXPERTS] = expert_tensors(config, layers, experts[worker.rank])
            if shared_with_experts:
                out[SegmentKind.SHARED_EXPERTS] = tuple(
                    tensor
                    for layer in layers
                    for tensor in whole_tensors(names.shared_shapes(config, layer))
                )
    out[SegmentKind.SHARED] = tuple(shared.values())
    return out


def model_layers(config: ModelConfig, layout: Layout, role: Group) -> Iterator[int]:
    """Numbers in the model of the layers that `role` owns on the ring, where only those with
    experts are; dense layers before them belong to the embedding."""
    return (layer + config.dense_layers for layer in layout.layers_of(role))


def balances_of(config: ModelConfig, layout: Layout, worker: Worker) -> tuple[LocalTensor, ...]:
    """The balance biases that `worker` needs: those of the layers whose router it has."""
    for role in layout.roles_of(worker.group):
        if role.side is Side.ATTENTION:
            return balance_tensors(config, model_layers(config, layout, role))
    return ()


def _shared_norms(config: ModelConfig, layout: Layout, group: Group) -> dict[str, LocalTensor]:
    """With a fused residual, rows travel un-normalised and both sides apply the norm before the
    experts: attention for its router, experts for their rows."""
    if not layout.fused_residual:
        return {}
    shape = (config.hidden,)
    layers = model_layers(config, layout, group)
    leaves = [names.attention_name(layer, "moe_norm") for layer in layers]
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
    """All segments of a worker; values and gradient sums by local name. `balances` are kept beside
    them in the wide type: no gradient, norm or weight decay ever meets them."""

    def __init__(
        self,
        tensors: Mapping[SegmentKind, Sequence[LocalTensor]],
        twice: Collection[str] = (),
        balances: Iterable[LocalTensor] = (),
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
        self.balances = {
            local.name: torch.zeros(local.shape, dtype=wide(dtype), device=device)
            for local in balances
        }
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
