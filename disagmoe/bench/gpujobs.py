"""What processes do that stand for the workers of a run, without Ray: measure the edges of its
channels, or train a few steps and watch themselves. With a transport over NCCL they need a GPU.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar
from unittest import mock

import torch

from disagmoe.config.run import RunConfig
from disagmoe.data.batch import Batch
from disagmoe.data.source import FixedSource
from disagmoe.errors import WorkerError
from disagmoe.model import device as model_device
from disagmoe.model import dispatch, experts
from disagmoe.runtime import experts as expert_side
from disagmoe.runtime.channels import WORLD, channel_specs
from disagmoe.runtime.context import Context
from disagmoe.runtime.edges import EdgeMeter, EdgeRate
from disagmoe.runtime.invariance.fleet import MakeTransport
from disagmoe.runtime.moments import moments_of
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.runtime.trace import WorkerTrace
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.from_config import compile_for
from disagmoe.schedule.ir import GroupProgram, Op
from disagmoe.schedule.layout import Side, Worker
from disagmoe.transport.rendezvous import StoreServer

_LOOPBACK = "127.0.0.1"
TIMEOUT_S = 60.0
_ANSWER_S = 100.0
END_READS = 24
"""How often a step reads the device after its program at most: norms, losses, choices, whether
gradients are finite. Ops number many times that, so one that reads shows."""
_READS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """One worker's part."""

    make: MakeTransport
    device: str
    config: RunConfig
    program: GroupProgram
    worker: Worker
    batches: Sequence[Batch]
    store: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Told:
    """What a worker says of its last two steps."""

    worker: str
    trace: WorkerTrace
    """Of the one before the last."""
    seconds: Mapping[str, float]
    """Of the same."""
    reads: int
    """How often the host has waited for the device in the last one, by the profiler."""
    asked: int
    """How often ops have asked for values in it, at the places made for that."""
    peak_memory_bytes: int


def run_jobs(
    what: Callable[[Job], T],
    make: MakeTransport,
    config: RunConfig,
    devices: Sequence[str],
    batches: Sequence[Batch] = (),
) -> dict[str, T]:
    """Do `what` in one process for each worker of the resolved `config`, on `devices` in turns, and
    return what they answer in the order of the workers, whoever is first.

    Raises WorkerError for the first that fails or does not answer.
    """
    programs = compile_for(config)[0].programs
    with closing(StoreServer(_LOOPBACK)) as server, ExitStack() as ended:
        pipes: dict[Any, str] = {}
        for rank, worker in enumerate(programs.spec.layout.workers):
            device = devices[rank % len(devices)]
            program = programs.part(worker.group)
            job = Job(make, device, config, program, worker, batches, (server.host, server.port))
            pipes[_start(what, job, ended)] = str(worker)
        answers = dict(_answers(pipes))
        return {name: answers[name] for name in pipes.values()}


def _start(what: Callable[[Job], T], job: Job, ended: ExitStack) -> Connection:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(what, job, there), daemon=True)
    process.start()
    there.close()
    ended.callback(process.join)
    ended.callback(process.kill)
    ended.callback(process.join, 5)
    ended.callback(here.close)
    return here


def _answers(pipes: dict[Any, str]) -> Iterator[tuple[str, Any]]:
    waiting = dict(pipes)
    while waiting:
        ready = wait(list(waiting), _ANSWER_S)
        if not ready:
            names = ", ".join(waiting.values())
            raise WorkerError(f"{names}: no answer within {_ANSWER_S:g} s")
        name = waiting.pop(ready[0])
        assert isinstance(ready[0], Connection)
        try:
            answer = ready[0].recv()
        except EOFError:
            raise WorkerError(f"the process of {name} has died") from None
        if isinstance(answer, Exception):
            raise answer
        yield name, answer


def _serve(what: Callable[[Job], Any], job: Job, pipe: Connection) -> None:
    torch.set_num_threads(1)
    try:
        if torch.device(job.device).type == "cuda":
            torch.cuda.set_device(job.device)
        answer = what(job)
    except Exception as error:  # noqa: BLE001 - raised again by the parent
        answer = WorkerError(f"{job.worker}: {error}")
    pipe.send(answer)


def measure_edges(job: Job) -> list[EdgeRate]:
    """Return the rates of all edges that come to this worker."""
    device = torch.device(job.device)
    specs = channel_specs(job.program.spec)
    with closing(job.make(str(job.worker), job.store, 0, TIMEOUT_S)) as transport:
        channels = transport.open(specs)
        meter = EdgeMeter(
            str(job.worker),
            tuple(map(str, job.program.spec.layout.workers)),
            channels[WORLD],
            device,
            moments_of(device, transport.launches, TIMEOUT_S),
        )
        payloads = [spec for spec in specs if not spec.on_host]
        return [rate for spec in payloads for rate in meter.measure(spec, channels.get(spec.name))]


def train(job: Job) -> Told:
    """Do one step for each of the batches, three or more, and profile the last one, which slows it
    down; the config must trace the one before."""
    sees_tokens = job.worker.group.side is not Side.EXPERT
    runtime = WorkerRuntime(
        Context(job.config, job.program.spec, job.worker, torch.device(job.device)),
        job.program,
        None,
        job.make(str(job.worker), job.store, 0, TIMEOUT_S),
        FixedSource(list(job.batches)) if sees_tokens else None,
    )
    last = len(job.batches) - 1
    with closing(runtime):
        runtime.connect()
        report = [runtime.run_step(step) for step in range(last)][-1]
        assert report.trace is not None, "the step before the last is not traced"
        with _asked() as asked, torch.profiler.profile() as profile:
            runtime.run_step(last)
        return Told(
            worker=str(job.worker),
            trace=report.trace,
            seconds=report.seconds,
            reads=sum(each.count for each in profile.key_averages() if each.key in _READS),
            asked=len(asked),
            peak_memory_bytes=report.peak_memory_bytes,
        )


@contextmanager
def _asked() -> Iterator[list[int]]:
    """Yield a list that gets an entry whenever an op asks the device for values."""
    asked: list[int] = []

    def counted(values: torch.Tensor) -> list[int]:
        asked.append(values.numel())
        return model_device.to_host(values)

    with ExitStack() as patched:
        for module in (dispatch, experts, expert_side):
            patched.enter_context(mock.patch.object(module, "to_host", counted))
        yield asked


def hidden_share(trace: WorkerTrace) -> float:
    """Share of the time of a worker's transfers in which it computed; 0 where it has none."""
    spans = [span for span in trace.spans if span.kind is Kind.COMPUTE]
    whole = sum(hop.end_s - hop.start_s for hop in trace.hops)
    hidden = sum(
        max(0.0, min(hop.end_s, span.end_s) - max(hop.start_s, span.start_s))
        for hop in trace.hops
        for span in spans
    )
    return hidden / whole if whole > 0 else 0.0


def counts_wait_s(trace: WorkerTrace) -> float:
    """How long a worker's device had nothing to do because row counts were not there."""
    posts = (str(Op.POST_RECV), str(Op.EXCHANGE))
    waits = [span for span in trace.spans if span.label.partition(" ")[0] in posts]
    return sum(span.end_s - span.start_s for span in waits)
