"""A crew whose workers are threads over inproc: a whole run without Ray, processes and sockets."""

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from disagmoe.actors.assignments import assignments, write_programs
from disagmoe.actors.crew import Reply
from disagmoe.actors.drive import Drive, Traces
from disagmoe.actors.events import Event, ScheduleTuned
from disagmoe.actors.host import WorkerHost
from disagmoe.actors.inquest import Inquest
from disagmoe.actors.keeper import Keeper
from disagmoe.actors.markers import Markers
from disagmoe.actors.messages import (
    Call,
    Located,
    Outcome,
    Progress,
    ResumePoint,
    RunPlan,
    WorkerAssignment,
    WorkerFailure,
)
from disagmoe.actors.settle import place
from disagmoe.actors.startup import open_data
from disagmoe.config.run import RunConfig
from disagmoe.data.source import BatchSource
from disagmoe.runtime.context import Context
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.schedule.from_config import compile_for
from disagmoe.schedule.layout import Side, Worker
from disagmoe.storage import Location
from disagmoe.transport.inproc import InprocHub
from tests.unit.actors.plans import located_by, plan_of


class ThreadCrew:
    """See Crew. `runtimes` are those of the workers once they are set up."""

    def __init__(
        self,
        plan: RunPlan,
        told: Sequence[WorkerAssignment],
        source: BatchSource | None,
        timeout_s: float,
    ) -> None:
        """Workers are where `plan` puts them. `source` gives the batches; None opens the data that
        the config names."""
        self.workers = tuple(item.worker for item in told)
        self.runtimes: dict[str, WorkerRuntime] = {}
        self.calls: list[Call] = []
        self._told = {item.worker: item for item in told}
        self._source = source
        self._hub = InprocHub(self.workers, timeout_s)
        self._located = located_by(plan)
        self._hosts = {name: WorkerHost(self._build, self._find) for name in self.workers}
        self._threads = {name: ThreadPoolExecutor(1) for name in self.workers}
        self._savers = {name: ThreadPoolExecutor(1) for name in self.workers}
        self._replies: queue.Queue[Reply] = queue.Queue()

    def _build(self, item: WorkerAssignment) -> WorkerRuntime:
        worker, train = Worker.parse(item.worker), item.train.open()
        source = self._source or open_data(item.config, item.resume.origin if item.resume else None)
        runtime = self.runtimes[item.worker] = WorkerRuntime(
            Context(item.config, train.spec, worker, torch.device("cpu")),
            train,
            None if item.evaluation is None else item.evaluation.open(),
            self._hub.transport(item.worker),
            None if worker.group.side is Side.EXPERT else source,
            Location.parse(item.checkpoints),
        )
        return runtime

    def _find(self, item: WorkerAssignment) -> Located:
        files = item.markers.meet(item.worker)
        return replace(self._located[item.worker], files=files)

    def assign(self, told: Sequence[WorkerAssignment]) -> None:
        self._told = {item.worker: item for item in told}

    def start(self, call: Call) -> None:
        self.calls.append(call)
        for name, host in self._hosts.items():
            threads = self._savers if call.kind == "saved" else self._threads
            action = self._action(call, host, self._told[name])
            threads[name].submit(self._do, call, name, action)

    @staticmethod
    def _action(call: Call, host: WorkerHost, told: WorkerAssignment) -> Callable[[], Outcome]:
        match call.kind:
            case "locate":
                return partial(host.locate, told)
            case "setup":
                return partial(host.setup, told)
            case "restore":
                return partial(host.restore, told)
            case "step":
                return partial(host.run_step, call.step)
            case "eval":
                return partial(host.evaluate, call.step)
            case "adopt":
                return partial(host.adopt, told, call.step)
            case "saved":
                return partial(host.saved, call.step)

    def _do(self, call: Call, name: str, action: Callable[[], Outcome]) -> None:
        outcome = action()
        if isinstance(outcome, WorkerFailure):
            self._hub.fail(name, outcome.message)
        self._replies.put(Reply(call, name, outcome))

    def poll(self, timeout_s: float) -> list[Reply]:
        try:
            return [self._replies.get(timeout=min(timeout_s, 60.0))]
        except queue.Empty:
            return []

    def ping(self, timeout_s: float) -> Mapping[str, Progress]:
        return {name: host.ping() for name, host in self._hosts.items()}

    def stacks(self, timeout_s: float) -> Mapping[str, str]:
        return {name: host.stacks() for name, host in self._hosts.items()}

    def request_stop(self) -> None:
        for host in self._hosts.values():
            host.request_stop()

    def kill(self) -> None:
        """Threads cannot be killed; they end with their queues."""
        for name in self.workers:
            self._hub.fail(name, "killed")
        for pools in (self._threads, self._savers):
            for pool in pools.values():
                pool.shutdown(wait=False, cancel_futures=True)


def no_retune(steps: Sequence[Traces]) -> tuple[ScheduleTuned, Sequence[WorkerAssignment]]:
    raise AssertionError("nothing is profiled here")


@contextmanager
def run_of(
    config: RunConfig,
    folder: Path,
    source: BatchSource | None = None,
    resume: ResumePoint | None = None,
    timeout_s: float = 60.0,
    checkpoints: str = "",
) -> Iterator[tuple[ThreadCrew, Iterator[Event]]]:
    """The workers of a resolved `config` and the events of their run, which saves to `checkpoints`,
    or to `folder` itself."""
    plan = plan_of(
        config,
        str(folder),
        markers=Markers(str(folder), "token"),
        checkpoints=checkpoints or str(folder),
        resume=resume,
    )
    plan.markers.begin()
    train, evaluation = compile_for(config)
    told = assignments(plan, train, evaluation, 0)
    crew = ThreadCrew(plan, told, source, timeout_s)
    programs = write_programs(folder / "programs", train, evaluation)
    keeper = Keeper(Location.parse(plan.checkpoints), config, programs, resume)
    keeper.clear()
    try:
        yield (
            crew,
            Drive(
                config, crew, Inquest(str), partial(place, plan, told), no_retune, keeper
            ).events(),
        )
    finally:
        crew.kill()
        for runtime in crew.runtimes.values():
            runtime.close()
