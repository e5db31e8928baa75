"""Actors that stand where workers of a run would, with its channels and nothing else."""

from collections.abc import Mapping
from typing import Any

import ray
import torch

from disagmoe.actors.locate import devices_here
from disagmoe.actors.messages import Located, WorkerAssignment
from disagmoe.actors.startup import transport_of
from disagmoe.actors.worker import OPTIONS
from disagmoe.config.run import RunConfig
from disagmoe.runtime.channels import WORLD, channel_specs
from disagmoe.runtime.context import shared_with_experts
from disagmoe.runtime.edges import EdgeMeter, EdgeRate
from disagmoe.runtime.moments import moments_of
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.transport.base import ChannelSpec, TransportChannel


def link_specs(config: RunConfig, spec: ProgramSpec) -> list[ChannelSpec]:
    """All channels of a run of `config`, as its workers open them."""
    return channel_specs(spec, shared_with_experts=shared_with_experts(config))


class _LinkShell:
    """One worker as far as its channels."""

    def __init__(self) -> None:
        self._specs: dict[str, ChannelSpec] = {}
        self._channels: Mapping[str, TransportChannel] = {}
        self._meter: EdgeMeter | None = None

    def locate(self, assignment: WorkerAssignment) -> Located:
        """Say where this process is, and what it sees there."""
        return devices_here(assignment)

    def open(self, assignment: WorkerAssignment, large_bytes: int) -> None:
        """Open the channels of the run. All workers call it together."""
        torch.set_num_threads(assignment.threads)
        cluster = assignment.config.cluster
        device = torch.device(cluster.device)
        transport = transport_of(assignment)
        specs = link_specs(assignment.config, assignment.train.open().spec)
        self._specs = {spec.name: spec for spec in specs}
        self._channels = transport.open(specs)
        self._meter = EdgeMeter(
            assignment.worker,
            self._specs[WORLD].members,
            self._channels[WORLD],
            device,
            moments_of(device, transport.launches, cluster.transfer_timeout_s),
            large_bytes,
        )

    def measure(self, channel: str) -> list[EdgeRate]:
        """Measure the edges of `channel` that come to this worker. All workers call it together."""
        assert self._meter is not None, "not open"
        return self._meter.measure(self._specs[channel], self._channels.get(channel))


LinkWorker: Any = ray.remote(**OPTIONS)(_LinkShell)
