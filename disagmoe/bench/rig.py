"""One system of a comparison: workers on hosts, set up again and again, one step at a time."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from disagmoe.actors.assignments import assignments
from disagmoe.actors.calls import Deadlines
from disagmoe.actors.crew import all_of
from disagmoe.actors.markers import Markers
from disagmoe.actors.messages import (
    Call,
    Outcome,
    Place,
    RunPlan,
    Started,
    WorkerFailure,
    ray_name,
)
from disagmoe.actors.raycrew import RayCrew
from disagmoe.cluster.bundles import NodeShape, bundles, workers_by_side
from disagmoe.cluster.placement import placed
from disagmoe.cluster.shares import threads_per_worker
from disagmoe.config.run import RunConfig
from disagmoe.errors import WorkerError
from disagmoe.runtime.report import StepReport
from disagmoe.schedule.compile import Compiled
from disagmoe.schedule.from_config import compile_for
from disagmoe.transport.rendezvous import StoreServer


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step of all workers."""

    elapsed_s: float
    """From the call until the last answer, as the driver sees it."""
    reports: Mapping[str, StepReport]


class Rig:
    """The workers of one layout; their processes outlive what they are set up for."""

    def __init__(
        self, places: Mapping[str, Place], store: StoreServer, folder: Path, run_id: str
    ) -> None:
        """`folder` takes the logs, `run_id` tells the names of its actors from those of others."""
        self._places = places
        self._store = store
        self._folder = folder
        self._run_id = run_id
        self._crew: RayCrew | None = None
        self._epoch = 0
        self._step = 0
        self.pids: dict[str, int] = {}

    @property
    def hosts(self) -> dict[str, str]:
        """Address of each worker's host."""
        return {worker: place.host for worker, place in self._places.items()}

    def set_up(self, config: RunConfig) -> Compiled:
        """Start `config`, whose workers are those of this rig, from its first step; return what
        they run. Raises WorkerError when a worker fails."""
        train, evaluation = compile_for(config)
        plan = RunPlan(
            config=config,
            run_dir=str(self._folder),
            run_id=self._run_id,
            host=self._store.host,
            places=self._places,
            markers=Markers(str(self._folder)),
            threads_per_worker=threads_per_worker(config, cores=1),
            epoch=self._epoch,
        )
        told = assignments(plan, train, evaluation, self._store.port)
        self._epoch += 1
        self._step = 0
        self._deadlines = Deadlines.of(config)
        if self._crew is None:
            self._crew = RayCrew(told, plan)
        else:
            self._crew.assign(told)
        started = all_of(Started, self._do(self._crew, Call("setup")))
        self.pids = {worker: answer.pid for worker, answer in started.items()}
        return train

    def step(self) -> TimedStep:
        """Do the next step. Raises WorkerError when a worker fails."""
        if self._crew is None:
            raise AssertionError("not set up")
        began_s = time.perf_counter()
        outcomes = self._do(self._crew, Call("step", self._step))
        elapsed_s = time.perf_counter() - began_s
        self._step += 1
        return TimedStep(elapsed_s, all_of(StepReport, outcomes))

    def close(self) -> None:
        """End the workers."""
        if self._crew is not None:
            self._crew.kill()

    def _do(self, crew: RayCrew, call: Call) -> Mapping[str, Outcome]:
        crew.start(call)
        end_s = time.monotonic() + self._deadlines.limit_s(call)
        outcomes: dict[str, Outcome] = {}
        while missing := [worker for worker in crew.workers if worker not in outcomes]:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise WorkerError(f"{', '.join(missing)} did not finish {call} in time")
            for reply in crew.poll(left_s):
                if isinstance(reply.outcome, WorkerFailure):
                    raise WorkerError(reply.outcome.message)
                outcomes[reply.worker] = reply.outcome
        return outcomes


@contextmanager
def rig(
    config: RunConfig, address: str, folder: Path, *, workers_per_node: int = 1
) -> Iterator[Rig]:
    """Reserve nodes for workers as those of `config`; they and the nodes end with the block.

    `address` is that of this host; `folder` takes programs' and workers' logs. No node has more
    than `workers_per_node`.

    Raises:
        PlacementError: the cluster lacks such nodes.
    """
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    workers = workers_by_side(config.parallel)
    asked = bundles(
        workers, dict.fromkeys(workers, NodeShape(workers=workers_per_node)), gpus_per_worker=0.0
    )
    run_id = f"bench-{folder.name}"
    with placed(asked, ray_name(run_id)) as own:
        store = StoreServer(address)
        made = Rig(own.places, store, folder, run_id)
        try:
            yield made
        finally:
            made.close()
            store.close()
