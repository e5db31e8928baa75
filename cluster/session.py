"""A run under way as the script sees it: a stream of events, and a way to stop it."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from disagmoe.actors.driver import Driver
from disagmoe.actors.events import Event, RunEnded
from disagmoe.actors.failure import exit_detail
from disagmoe.actors.markers import Markers
from disagmoe.actors.messages import ResumePoint, RunPlan
from disagmoe.cluster.contact import Contact, remove_contact
from disagmoe.cluster.ground import Ground, ground
from disagmoe.cluster.join import Target
from disagmoe.cluster.recovering import Epoch, Recovering
from disagmoe.cluster.signals import deferred
from disagmoe.config.run import RunConfig
from disagmoe.errors import WorkerError

_POLL_S = 0.25
"""Less than the second after which Ray looks for signals itself, and turns what a handler raises
into something else."""
_PING_AFTER_S = 3.0


class Session:
    """The driver of a run, seen from the script."""

    def __init__(self, driver: Any, plan: RunPlan) -> None:
        self._driver = driver
        self._stream = driver.run.options(num_returns="streaming").remote(plan)
        self._ended = False
        self._ping: Any = driver.ping.remote()
        self._pinged_s = time.monotonic()
        self._pid: int | None = None
        self._answered = False
        self._start_within_s = plan.config.cluster.start_timeout_s
        self._alive_within_s = plan.config.cluster.heartbeat_timeout_s

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
                heard_s = self._check_driver(heard_s)
                continue
            event = self._next()
            heard_s = time.monotonic()
            self._answered = True
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

    def _check_driver(self, heard_s: float) -> float:
        """Return when the driver was heard last; ask it after a silence."""
        now_s = time.monotonic()
        if self._ping is None:
            if now_s >= heard_s + _PING_AFTER_S:
                self._ping, self._pinged_s = self._driver.ping.remote(), now_s
            return heard_s
        if ray.wait([self._ping], timeout=0)[0]:
            ping, self._ping, self._answered = self._ping, None, True
            try:
                self._pid = ray.get(ping)
            except RayError as error:
                raise WorkerError(f"the driver has died: {exit_detail(str(error))}") from error
            return now_s
        limit_s = self._alive_within_s if self._answered else self._start_within_s
        if now_s >= self._pinged_s + limit_s:
            raise WorkerError(
                f"the driver has answered nothing for {limit_s:g} s; it may be suspended, out of "
                "memory, or stuck in native code"
            )
        return heard_s

    def request_stop(self) -> None:
        """Ask for an end after the step under way and a save, if the config asks for one; `events`
        tells when it has come."""
        self._driver.request_stop.remote()

    def end(self) -> None:
        """Kill the driver, and with it the workers, which it owns."""
        with suppress(RayError):
            ray.kill(self._driver)
        if self._pid is not None:  # it is on this machine; one that is suspended hears no Ray
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)


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
    go_on: Callable[[], tuple[RunConfig, ResumePoint | None]],
) -> Iterator[Recovering]:
    """Start a run of the resolved `config` on `target`, which this process has joined if it is not
    the run's own; end both the run and what it has started. `say` tells whom it waits for.

    It saves to `checkpoints`, and begins at `resume` or at its first step. After a failure `go_on`
    says from where, and with which config.

    Raises:
        ConfigError, PlacementError: see `ground`.
    """
    with ground(config, target, run_id, say) as given:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        # newer Ray shows all GPUs to an actor that asks for none
        hidden = {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}
        options = {"runtime_env": hidden} if config.cluster.device == "cuda" else {}

        def launch(epoch: Epoch) -> Session:
            places = given.places
            if epoch.number and given.renew is not None:
                places = given.renew(epoch.leave_out)
            plan = RunPlan(
                config=epoch.config,
                run_dir=run_dir,
                run_id=run_id,
                host=given.host,
                places=places,
                markers=Markers(
                    run_dir, checkpoints=checkpoints if config.checkpoint.folder else ""
                ),
                threads_per_worker=given.threads_per_worker,
                cpus_per_worker=given.cpus_per_worker,
                gpus_per_worker=given.gpus_per_worker,
                epoch=epoch.number,
                checkpoints=checkpoints,
                resume=epoch.resume,
            )
            name = f"{plan.ray_name}/e{epoch.number}/driver"
            driver = Driver.options(name=name, scheduling_strategy=here, **options).remote()
            _contact(given, name).write(Path(run_dir))
            return Session(driver, plan)

        first = Epoch(number=0, config=config, resume=resume)
        run = Recovering(first, launch, go_on, config.recovery, host=given.host)
        try:
            yield run
        finally:
            with deferred():
                run.close()
                remove_contact(Path(run_dir))


def _contact(given: Ground, driver: str) -> Contact:
    context = ray.get_runtime_context()
    return Contact(
        address=context.gcs_address,
        namespace=context.namespace,
        driver=driver,
        token=given.token,
        pid=os.getpid(),
        host=given.host,
    )
