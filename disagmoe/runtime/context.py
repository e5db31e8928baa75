"""What one worker knows about the run; all of it fixed before the first step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from disagmoe.config.run import RunConfig
from disagmoe.model.partition import expert_ranges
from disagmoe.model.precision import TYPES, wide
from disagmoe.runtime.wire import Wire
from disagmoe.schedule.gateways import host_of, hosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import HOPS, Layout, Side, Worker


@dataclass(frozen=True)
class Context:
    """A resolved config, the programs' spec, and this worker's place in them."""

    config: RunConfig
    spec: ProgramSpec
    worker: Worker
    device: torch.device

    @property
    def layout(self) -> Layout:
        """The ring."""
        return self.spec.layout

    def role(self, side: Side) -> Worker | None:
        """This worker in its role on `side`, or None where it does not play it."""
        for group in self.layout.roles_of(self.worker.group):
            if group.side is side:
                return Worker(group, self.worker.rank, self.worker.ring)
        return None

    @property
    def shared_with_experts(self) -> bool:
        """Whether there are shared experts, and on the expert workers."""
        return shared_with_experts(self.config)

    def model_layer(self, layer: int) -> int:
        """Number in the model of a layer of the ring, on which dense layers are not."""
        return layer + self.config.model.dense_layers

    def recomputes(self, side: Side) -> bool:
        """Whether `side` computes its activations again instead of keeping them."""
        kinds = {Side.ATTENTION: "attention", Side.EXPERT: "experts"}
        return self.config.parallel.recompute in ("all", kinds.get(side))

    @cached_property
    def process_of(self) -> dict[str, str]:
        """Name of the worker behind every role's name, in this worker's ring."""
        layout = self.layout
        return {
            str(role): str(layout.process(role))
            for group in layout.roles
            for role in layout.members(group, self.worker.ring)
        }

    @cached_property
    def dtype(self) -> torch.dtype:
        """Type of weights and activations."""
        return TYPES[self.config.train.precision]

    @property
    def exact(self) -> torch.dtype:
        """Type of sums, gates and losses."""
        return wide(self.dtype)

    @cached_property
    def wire(self) -> Wire:
        """Formats of all messages."""
        return Wire(
            hidden=self.config.model.hidden,
            dtype=self.dtype,
            exact=self.exact,
            with_tokens=self.layout.groups > 1,
            with_home=self.layout.fused_residual or self.shared_with_experts,
        )

    @cached_property
    def near_wire(self) -> Wire:
        """Formats of messages to and from the experts: between gateways and the experts of their
        host, which send back to where rows came from, or those of all messages."""
        return replace(self.wire, with_tokens=False) if self.layout.two_hop else self.wire

    @cached_property
    def expert_ranges(self) -> tuple[range, ...]:
        """Experts of each rank of an expert group."""
        return expert_ranges(self.config.model.experts, self.config.parallel.expert_weights)

    @cached_property
    def destinations(self) -> tuple[range, ...]:
        """Experts of each worker that an attention worker sends to: one of each host, for all that
        are there, or all workers."""
        ranges = self.expert_ranges
        if not self.layout.two_hop:
            return ranges
        return tuple(
            range(ranges[host[0]].start, ranges[host[-1]].stop) for host in hosts(self.layout)
        )

    @cached_property
    def takers(self) -> dict[str, torch.Tensor]:
        """By hop: whom the rows for each expert go to [E]. Across the network that is a host where
        rows go in two hops, else a worker."""
        parts = {HOPS[0]: self.destinations}
        if self.layout.two_hop:
            parts[HOPS[1]] = self.expert_ranges
        return {hop: _owners(ranges).to(self.device) for hop, ranges in parts.items()}

    @cached_property
    def experts_of_neighbours(self) -> tuple[int, ...]:
        """How many experts each expert worker on this worker's host has; with two hops."""
        host = host_of(self.layout, self.worker.rank)
        return tuple(len(self.expert_ranges[rank]) for rank in host)


def shared_with_experts(config: RunConfig) -> bool:
    """Whether `config` has shared experts, and has them on the expert workers."""
    return config.model.shared_width > 0 and config.parallel.shared_experts == "expert"


def _owners(ranges: Sequence[range]) -> torch.Tensor:
    return torch.tensor([part for part, experts in enumerate(ranges) for _ in experts])
