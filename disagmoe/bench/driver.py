"""What the driver costs a step: real calls, replies and reductions around steps that only pause."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray

from disagmoe.actors.assignments import assignments
from disagmoe.actors.drive import Drive, Traces
from disagmoe.actors.events import RunEnded, RunPlaced, ScheduleTuned, StepResult
from disagmoe.actors.inquest import Inquest
from disagmoe.actors.keeper import Keeper
from disagmoe.actors.markers import Markers
from disagmoe.actors.messages import Located, Place, RunPlan, WorkerAssignment
from disagmoe.actors.raycrew import RayCrew
from disagmoe.bench.stub import STEP_S, UNDRIVEN_REPEATS, UNDRIVEN_STEP, StubWorker
from disagmoe.cluster.local import LOOPBACK, local_ray
from disagmoe.config.load import parse_run_config
from disagmoe.config.run import RunConfig
from disagmoe.errors import WorkerError
from disagmoe.schedule.from_config import compile_for
from disagmoe.storage import Location
from disagmoe.transport.rendezvous import StoreServer

_WARM_STEPS = UNDRIVEN_STEP + 2  # the first one after the step that is many is late
LIMIT_MS = 5.0
"""Most that a step may be longer than what it computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCost:
    """What was measured."""

    workers: int
    steps: int
    step_ms: float
    """Mean duration of a step, from the end of one to the end of the next."""
    step_overhead_ms: float
    """The same without the pause of the worker."""
    median_overhead_ms: float
    """Of the median step."""
    undriven_overhead_ms: float
    """Of a step of the same workers that the driver does not call: what it takes them to wake and
    to meet on the cores they have."""
    call_us: float
    """CPU time of the driver per worker and step: one call and its reply."""
    workers_at_full_driver: int
    """Workers whose calls would take all of a driver's core in steps of this length."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def config_of(workers: int, steps: int) -> RunConfig:
    """A run whose programs are tiny; `workers` is even."""
    return parse_run_config(
        {
            "name": "driver",
            "model": {
                "family": "qwen3_moe",
                "vocab_size": 257,
                "hidden": 16,
                "layers": 1,
                "heads": 2,
                "kv_heads": 1,
                "head_dim": 8,
                "experts": max(2, workers // 2),
                "top_k": 1,
                "expert_width": 8,
            },
            "parallel": {
                "attention_workers": workers // 2,
                "expert_workers": workers // 2,
                "micro_batch_size": workers // 2,
                "profile": "off",
                "residual": "local",
            },
            "train": {
                "steps": steps,
                "global_batch_size": workers // 2,
                "sequence_length": 8,
                "precision": "fp32",
            },
            "data": {"paths": ["none"]},
            "cluster": {"device": "cpu", "transport": "gloo"},
            "checkpoint": {"interval_s": 0.0, "at_end": False},
        }
    )


def measure(workers: int, steps: int, folder: Path) -> DriverCost:
    """Drive `workers` stub workers for `steps` steps, and some to warm up.

    Raises WorkerError where a worker fails.
    """
    config = config_of(workers, steps + _WARM_STEPS)
    with local_ray(workers, 1):
        place = Place(node=ray.get_runtime_context().get_node_id(), host=LOOPBACK, cpus=1)
        plan = RunPlan(
            config=config,
            run_dir=str(folder),
            run_id="bench-driver",
            host=LOOPBACK,
            places=dict.fromkeys(config.parallel.worker_names, place),
            markers=Markers(str(folder)),
            threads_per_worker=1,
        )
        store = StoreServer(plan.host)
        train, _ = compile_for(config)
        told = assignments(plan, train, None, store.port)
        crew = RayCrew(told, plan, lambda _: StubWorker)

        def settle(_: Mapping[str, Located]) -> tuple[RunPlaced, Sequence[WorkerAssignment]]:
            return RunPlaced(seats=()), told

        keeper = Keeper(Location.parse(str(folder / "checkpoints")), config, "")
        drive = Drive(config, crew, Inquest(str), settle, _no_retune, keeper)
        return _drive(drive, workers, steps)


def _no_retune(_: Sequence[Traces]) -> tuple[ScheduleTuned, Sequence[WorkerAssignment]]:
    raise AssertionError("nothing is profiled")


def _drive(drive: Drive, workers: int, steps: int) -> DriverCost:
    durations: list[float] = []
    undriven_s = begin_s = end_s = 0.0
    for event in drive.events():
        if isinstance(event, StepResult):
            if event.step == UNDRIVEN_STEP:
                undriven_s = event.step_s / UNDRIVEN_REPEATS
            if event.step == _WARM_STEPS - 1:
                begin_s = time.process_time()
            if event.step >= _WARM_STEPS:
                durations.append(event.step_s)
                end_s = time.process_time()
        elif isinstance(event, RunEnded) and event.failures:
            raise WorkerError(event.failures[0].message)
    return cost_of(durations, undriven_s, end_s - begin_s, workers, steps)


def cost_of(
    durations: Sequence[float], undriven_s: float, cpu_s: float, workers: int, steps: int
) -> DriverCost:
    """Return what `steps` steps that took `durations`, without the driver `undriven_s` each, have
    cost the driver's `cpu_s`."""
    call_s = cpu_s / (steps * workers)
    return DriverCost(
        workers=workers,
        steps=steps,
        step_ms=1e3 * statistics.fmean(durations),
        step_overhead_ms=1e3 * (statistics.fmean(durations) - STEP_S),
        median_overhead_ms=1e3 * (statistics.median(durations) - STEP_S),
        undriven_overhead_ms=1e3 * (undriven_s - STEP_S),
        call_us=1e6 * call_s,
        workers_at_full_driver=int(STEP_S / call_s),
    )
