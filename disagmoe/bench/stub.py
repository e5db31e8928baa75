"""Workers that compute nothing: a step is a pause, and ends in the real world reduction."""

import time
from types import SimpleNamespace
from typing import Any, cast

import ray
import torch

from disagmoe.actors.host import WorkerHost
from disagmoe.actors.messages import Located, WorkerAssignment
from disagmoe.actors.worker import OPTIONS, WorkerShell
from disagmoe.runtime.channels import WORLD, channel_specs
from disagmoe.runtime.clock import Stopwatch
from disagmoe.runtime.context import Context
from disagmoe.runtime.counters import StepCounters
from disagmoe.runtime.report import StepReport
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.runtime.world import Share, World
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.layout import Worker
from disagmoe.transport.base import TransportChannel
from disagmoe.transport.collective import reduce_to_all_small
from disagmoe.transport.gloo import GlooTransport
from disagmoe.transport.rendezvous import connect

STEP_S = 0.1
"""What a step would compute."""
UNDRIVEN_STEP = 5
"""The call that makes many steps, which the driver has no part in; those before it warm up."""
UNDRIVEN_REPEATS = 60
"""How many."""


class StubRuntime:
    """What of a WorkerRuntime a host and the driving loop need."""

    def __init__(self, assignment: WorkerAssignment) -> None:
        torch.set_num_threads(1)
        config, cluster = assignment.config, assignment.config.cluster
        spec = assignment.train.open().spec
        self._context = Context(config, spec, Worker.parse(assignment.worker), torch.device("cpu"))
        self._me = assignment.worker
        self._everyone = [str(worker) for worker in spec.layout.workers]
        self._transport = GlooTransport(
            assignment.worker,
            connect(assignment.store_host, assignment.store_port, cluster.start_timeout_s),
            epoch=assignment.epoch,
            host=assignment.host,
            interface=None,
            timeout_s=cluster.transfer_timeout_s,
            start_timeout_s=cluster.start_timeout_s,
        )
        self._world: TransportChannel | None = None
        self.stopwatch = Stopwatch()
        self.interpreter = SimpleNamespace(progressed_at_s=-1.0)
        self.sending: tuple[str, ...] = ()

    def connect(self) -> None:
        """Open the channel of all workers."""
        specs = [one for one in channel_specs(self._context.spec) if one.name == WORLD]
        self._world = self._transport.open(specs)[WORLD]

    def run_step(self, step: int) -> StepReport:
        """Pause, then add up with all others."""
        if step == UNDRIVEN_STEP:
            for _ in range(UNDRIVEN_REPEATS - 1):
                self._do(step)
        return self._do(step)

    def _do(self, step: int) -> StepReport:
        assert self._world is not None
        self.stopwatch.switch(Kind.COMPUTE)
        time.sleep(STEP_S)
        self.stopwatch.switch(Kind.IDLE)
        share = Share(counters=StepCounters.zero(self._context, 0), tokens=1)
        vector = share.encode(self._everyone.index(self._me), len(self._everyone))
        total = reduce_to_all_small(self._world, self._me, self._everyone, vector)
        world = World.decode(total, self._everyone, self._context.config.model.experts)
        return StepReport(
            step=step,
            loss=world.loss,
            balance=world.balance,
            z=world.z,
            grad_norm=0.0,
            lr=0.0,
            tokens=world.tokens,
            valid_targets=world.valid_targets,
            skipped="",
            stopped=world.stop,
            saving=False,
            choices_LE=world.choices_LE,
            seconds={kind.value: seconds for kind, seconds in self.stopwatch.take().items()},
            traffic={},
            hops={},
            peak_memory_bytes=0,
        )

    def request_stop(self) -> None:
        """Nobody stops a measurement."""

    def close(self) -> None:
        """Leave the channel."""
        self._transport.close()


def _build(assignment: WorkerAssignment) -> WorkerRuntime:
    return cast(WorkerRuntime, StubRuntime(assignment))


def _find(assignment: WorkerAssignment) -> Located:
    return Located(
        worker=assignment.worker,
        node="",
        host=assignment.host,
        pid=0,
        gpu_ids=(),
        visible_gpus=(),
        node_gpus=(),
        nics=(),
        environment={},
        versions={},
        files="",
    )


class _StubShell(WorkerShell):
    def __init__(self) -> None:
        super().__init__(WorkerHost(_build, _find))


StubWorker: Any = ray.remote(**OPTIONS)(_StubShell)
