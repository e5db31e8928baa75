"""A run under way as the script sees it: a stream of events, and a way to stop it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import torch
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from disagmoe.actors.driver import Driver
from disagmoe.actors.events import Event, RunEnded
from disagmoe.actors.failure import exit_detail
from disagmoe.actors.messages import RunPlan
from disagmoe.cluster.local import local_ray
from disagmoe.cluster.shares import cores, gpus_per_worker, threads_per_worker, worker_count
from disagmoe.config.run import RunConfig
from disagmoe.errors import WorkerError

_POLL_S = 0.25
"""Less than the second after which Ray looks for signals itself, and turns what a handler raises
into something else."""
_PING_AFTER_S = 30.0
_ANSWER_S = 60.0


class Session:
    """The driver of a run, seen from the script."""

    def __init__(self, driver: Any, plan: RunPlan) -> None:
        self._driver = driver
        self.host = plan.host
        """Address of this machine that others of the run reach."""
        self._stream = driver.run.options(num_returns="streaming").remote(plan)
        self._ended = False

    def events(self, for_s: float = float("inf")) -> Iterator[Event]:
        """Yield events as they come, up to and including RunEnded, for at most `for_s` seconds.

        May be called again after an interrupt, and goes on where it was.

        Raises:
            WorkerError: the driver is dead or answers nothing.
        """
        end_s = time.monotonic() + for_s
        heard_s = time.monotonic()
        while not self._ended and time.monotonic() < end_s:
            ready, _ = ray.wait([self._stream], timeout=_POLL_S, fetch_local=False)
            if not ready:
                heard_s = self._heard(heard_s)
                continue
            event = self._next()
            heard_s = time.monotonic()
            self._ended = isinstance(event, RunEnded)
            yield event

    def _next(self) -> Event:
        try:
            event: Event = ray.get(next(self._stream))
        except RayError as error:
            raise WorkerError(f"the driver has died: {exit_detail(str(error))}") from error
        except StopIteration:
            raise WorkerError("the driver has ended without an outcome") from None
        return event

    def _heard(self, heard_s: float) -> float:
        """Return when the driver was last heard; ask it after a long silence."""
        if time.monotonic() < heard_s + _PING_AFTER_S:
            return heard_s
        try:
            ray.get(self._driver.ping.remote(), timeout=_ANSWER_S)
        except RayError as error:
            raise WorkerError(
                f"the driver has not answered for {_ANSWER_S:g} s: {exit_detail(str(error))}"
            ) from error
        return time.monotonic()

    def request_stop(self) -> None:
        """Ask for an end after the step under way; `events` tells when it has come."""
        self._driver.request_stop.remote()


@contextmanager
def local_session(config: RunConfig, run_dir: str) -> Iterator[Session]:
    """Start a private Ray and a run of the resolved `config` on it; end both.

    Raises:
        ConfigError, PlacementError: see `local_ray`.
    """
    threads = threads_per_worker(config, cores())
    with local_ray(worker_count(config), threads) as host:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        # newer Ray shows all GPUs to an actor that asks for none
        hidden = {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}
        options = {"runtime_env": hidden} if config.cluster.device == "cuda" else {}
        driver = Driver.options(scheduling_strategy=here, **options).remote()
        yield Session(
            driver,
            RunPlan(
                config=config,
                run_dir=run_dir,
                host=host,
                threads_per_worker=threads,
                gpus_per_worker=gpus_per_worker(config, torch.cuda.device_count()),
            ),
        )
