"""A run under way as the script sees it: a stream of events, and a way to stop it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from disagmoe.actors.driver import Driver
from disagmoe.actors.events import Event, RunEnded
from disagmoe.actors.failure import exit_detail
from disagmoe.actors.markers import Markers
from disagmoe.actors.messages import ResumePoint, RunPlan
from disagmoe.cluster.ground import ground
from disagmoe.cluster.join import Target
from disagmoe.cluster.signals import deferred
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
        """Ask for an end after the step under way and a save, if the config asks for one; `events`
        tells when it has come."""
        self._driver.request_stop.remote()


@contextmanager
def run_session(
    config: RunConfig,
    run_dir: str,
    target: Target,
    run_id: str,
    say: Callable[[str], None],
    *,
    checkpoints: str,
    resume: ResumePoint | None,
) -> Iterator[Session]:
    """Start a run of the resolved `config` on `target`, which this process has joined if it is not
    the run's own; end both the run and what it has started. `say` tells whom it waits for.

    It saves to `checkpoints`, and begins at `resume` or at its first step.

    Raises:
        ConfigError, PlacementError: see `ground`.
    """
    with ground(config, target, run_id, say) as given:
        plan = RunPlan(
            config=config,
            run_dir=run_dir,
            run_id=run_id,
            host=given.host,
            places=given.places,
            markers=Markers(run_dir),
            threads_per_worker=given.threads_per_worker,
            cpus_per_worker=given.cpus_per_worker,
            gpus_per_worker=given.gpus_per_worker,
            checkpoints=checkpoints,
            resume=resume,
        )
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        # newer Ray shows all GPUs to an actor that asks for none
        hidden = {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}
        options = {"runtime_env": hidden} if config.cluster.device == "cuda" else {}
        driver = Driver.options(
            name=f"{plan.ray_name}/driver", scheduling_strategy=here, **options
        ).remote()
        try:
            yield Session(driver, plan)
        finally:
            with deferred(), suppress(RayError):
                ray.kill(driver)  # and with it the workers, which it owns
