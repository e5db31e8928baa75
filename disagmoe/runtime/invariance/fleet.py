"""All workers of one layout, as threads over inproc or as processes over gloo."""

import multiprocessing
import pickle
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

import torch

from disagmoe.config.run import RunConfig
from disagmoe.data.batch import Batch
from disagmoe.data.source import FixedSource
from disagmoe.errors import WorkerError
from disagmoe.runtime.context import Context
from disagmoe.runtime.invariance.worker import Observation, observe
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.runtime.threads import ThreadedRun
from disagmoe.runtime.update import TrainingState
from disagmoe.schedule.from_config import compile_for
from disagmoe.schedule.ir import GroupProgram
from disagmoe.schedule.layout import Side, Worker
from disagmoe.transport.base import Transport
from disagmoe.transport.gloo import GlooTransport
from disagmoe.transport.rendezvous import StoreServer, connect

_LOOPBACK = "127.0.0.1"
_TIMEOUT_S = 60.0


class Fleet(Protocol):
    """Runs steps of one layout after another."""

    def run(
        self, config: RunConfig, batches: list[Batch], states: list[TrainingState | None]
    ) -> list[Mapping[Worker, Observation]]:
        """Do one step per batch in the layout of `config`; `states` are loaded before the steps.

        Raises WorkerError when a worker fails.
        """

    def close(self) -> None:
        """End threads or processes."""


class ThreadFleet:
    """Workers as threads."""

    def run(
        self, config: RunConfig, batches: list[Batch], states: list[TrainingState | None]
    ) -> list[Mapping[Worker, Observation]]:
        """See Fleet.run."""
        run = ThreadedRun(config, FixedSource(batches), timeout_s=_TIMEOUT_S)
        with closing(run):
            seen = run.each(lambda runtime: observe(runtime, states))
        return _by_step(seen)

    def close(self) -> None:
        """Nothing is kept."""


def _by_step(seen: Mapping[Worker, list[Observation]]) -> list[Mapping[Worker, Observation]]:
    return [dict(zip(seen, step, strict=True)) for step in zip(*seen.values(), strict=True)]


class MakeTransport(Protocol):
    """Makes the transport of one worker; a value that can go to another process."""

    def __call__(
        self, worker: str, store: tuple[str, int], epoch: int, timeout_s: float
    ) -> Transport:
        """The transport of `worker`, whose run's store is at `store`."""


def over_gloo(worker: str, store: tuple[str, int], epoch: int, timeout_s: float) -> GlooTransport:
    """Gloo on loopback."""
    return GlooTransport(
        worker,
        connect(*store, timeout_s),
        epoch=epoch,
        host=_LOOPBACK,
        timeout_s=timeout_s,
        start_timeout_s=timeout_s,
    )


@dataclass(frozen=True, slots=True)
class _Task:
    make: MakeTransport
    device: str
    config: RunConfig
    train: GroupProgram
    worker: Worker
    batches: list[Batch]
    states: list[TrainingState | None]
    store: tuple[str, int]
    epoch: int


class ProcessFleet:
    """Workers as processes of one pool that is started once, because importing torch takes long."""

    def __init__(
        self, processes: int, make: MakeTransport = over_gloo, devices: Sequence[str] = ("cpu",)
    ) -> None:
        """Workers compute on `devices`, in turns."""
        self._make = make
        self._devices = devices
        context = multiprocessing.get_context("spawn")
        self._server = StoreServer(_LOOPBACK)
        self._epoch = 0
        self._members: list[tuple[BaseProcess, Connection]] = []
        for _ in range(processes):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            process.start()
            there.close()
            self._members.append((process, here))

    def run(
        self, config: RunConfig, batches: list[Batch], states: list[TrainingState | None]
    ) -> list[Mapping[Worker, Observation]]:
        """See Fleet.run."""
        programs = compile_for(config)[0].programs
        workers = programs.spec.layout.workers
        if len(workers) > len(self._members):
            raise WorkerError(f"{len(workers)} workers on a pool of {len(self._members)} processes")
        self._epoch += 1
        store = (self._server.host, self._server.port)
        pipes = [pipe for _, pipe in self._members[: len(workers)]]
        for rank, (worker, pipe) in enumerate(zip(workers, pipes, strict=True)):
            device = self._devices[rank % len(self._devices)]
            train = programs.part(worker.group)
            task = _Task(
                self._make, device, config, train, worker, batches, states, store, self._epoch
            )
            pipe.send_bytes(pickle.dumps(task))
        return _by_step(
            {worker: _answer(worker, pipe) for worker, pipe in zip(workers, pipes, strict=True)}
        )

    def close(self) -> None:
        """End the processes."""
        for process, pipe in self._members:
            pipe.close()
            process.join(5)
            process.kill()
        self._server.close()


def _answer(worker: Worker, pipe: Connection) -> list[Observation]:
    if not wait([pipe], 3 * _TIMEOUT_S):
        raise WorkerError(f"{worker} gives no answer within {3 * _TIMEOUT_S:g} s")
    try:
        answer = pickle.loads(pipe.recv_bytes())
    except EOFError:
        raise WorkerError(f"the process of {worker} has died") from None
    if isinstance(answer, Exception):
        raise answer
    observations: list[Observation] = answer
    return observations


def _serve(pipe: Connection) -> None:
    """Run tasks until the pipe closes. Tensors go through the pipe by value: by `pipe.send` each
    would be shared memory, and an open file on both sides."""
    torch.set_num_threads(1)
    while True:
        try:
            task = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            pipe.send_bytes(pickle.dumps(_run_task(task)))
        except Exception as error:  # noqa: BLE001 - raised again by the parent
            pipe.send_bytes(pickle.dumps(WorkerError(f"{task.worker}: {error}")))


def _run_task(task: _Task) -> list[Observation]:
    device = torch.device(task.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    transport = task.make(str(task.worker), task.store, task.epoch, _TIMEOUT_S)
    sees_tokens = task.worker.group.side is not Side.EXPERT
    runtime = WorkerRuntime(
        Context(task.config, task.train.spec, task.worker, device),
        task.train,
        None,
        transport,
        FixedSource(task.batches) if sees_tokens else None,
    )
    with closing(runtime):
        runtime.connect()
        return observe(runtime, task.states)
