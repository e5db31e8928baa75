"""The driver actor: compiles the programs, hosts the store, and drives the workers."""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ray

from disagmoe.actors.assignments import assignments, write_programs
from disagmoe.actors.drive import Drive
from disagmoe.actors.eventlog import log_event
from disagmoe.actors.events import Event, RunEnded
from disagmoe.actors.failure import failure_of
from disagmoe.actors.inquest import Inquest
from disagmoe.actors.keeper import Keeper
from disagmoe.actors.messages import RunPlan
from disagmoe.actors.raycrew import RayCrew
from disagmoe.actors.retune import retuned
from disagmoe.actors.settle import place
from disagmoe.actors.startup import log_to
from disagmoe.schedule.from_config import compile_for
from disagmoe.storage import Location
from disagmoe.transport.rendezvous import StoreServer

log = logging.getLogger(__name__)


class _DriverShell:
    """Drives one run. All workers belong to it and die with it."""

    def __init__(self) -> None:
        self._crew: RayCrew | None = None
        self._stop_requested = False

    def run(self, plan: RunPlan) -> Iterator[Event]:
        """Do the whole run; the last event is a RunEnded, whatever happens."""
        logs = Path(plan.run_dir) / "logs"
        log_to(str(logs / "driver.log"))
        try:
            store = StoreServer(plan.host)
            train, evaluation = compile_for(plan.config)
            programs = write_programs(Path(plan.run_dir) / "programs", train, evaluation)
            keeper = Keeper(Location.parse(plan.checkpoints), plan.config, programs, plan.resume)
            keeper.clear()
            plan.markers.begin()
            told = assignments(plan, train, evaluation, store.port)
            self._crew = RayCrew(told, plan)
            if self._stop_requested:
                self._crew.request_stop()

            def save_stacks(text: str) -> str:
                place = logs / "stacks.txt"
                place.write_text(text, encoding="utf-8")
                return str(place)

            drive = Drive(
                plan.config,
                self._crew,
                Inquest(save_stacks),
                partial(place, plan, told),
                partial(retuned, plan, store_port=store.port),
                keeper,
            )
            for event in drive.events():
                log_event(event)
                yield event
            store.close()
        except Exception as error:
            log.exception("the driver failed")
            yield RunEnded(status="failed", failures=(failure_of("driver", error),))

    @ray.method(concurrency_group="control")
    def request_stop(self) -> None:
        """Make the step under way, or the next one, the last."""
        self._stop_requested = True
        if self._crew is not None:
            self._crew.request_stop()

    @ray.method(concurrency_group="control")
    def ping(self) -> None:
        """Answer."""


_OPTIONS: dict[str, Any] = {
    "num_cpus": 0,
    "max_restarts": 0,
    "max_task_retries": 0,
    "concurrency_groups": {"control": 1},
}
Driver: Any = ray.remote(**_OPTIONS)(_DriverShell)
