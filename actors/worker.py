"""The actors that hold workers: shells around WorkerHost.

The default group has one thread, which makes all calls of a run in the order in which they came;
devices and channels belong to it. The control group answers while a step runs, and the saving group
once a checkpoint is written.
"""

from typing import Any

import ray

from disagmoe.actors.host import WorkerHost
from disagmoe.actors.messages import Outcome, Progress, WorkerAssignment


class WorkerShell:
    """What all of them answer."""

    def __init__(self, host: WorkerHost | None = None) -> None:
        self._host = host or WorkerHost()

    def locate(self, assignment: WorkerAssignment) -> Outcome:
        """See WorkerHost.locate."""
        return self._host.locate(assignment)

    def setup(self, assignment: WorkerAssignment) -> Outcome:
        """See WorkerHost.setup."""
        return self._host.setup(assignment)

    def restore(self, assignment: WorkerAssignment) -> Outcome:
        """See WorkerHost.restore."""
        return self._host.restore(assignment)

    def run_step(self, step: int) -> Outcome:
        """See WorkerHost.run_step."""
        return self._host.run_step(step)

    def evaluate(self, after_step: int) -> Outcome:
        """See WorkerHost.evaluate."""
        return self._host.evaluate(after_step)

    def adopt(self, assignment: WorkerAssignment, after_step: int) -> Outcome:
        """See WorkerHost.adopt."""
        return self._host.adopt(assignment, after_step)

    @ray.method(concurrency_group="saving")
    def saved(self, step: int) -> Outcome:
        """See WorkerHost.saved."""
        return self._host.saved(step)

    @ray.method(concurrency_group="control")
    def ping(self) -> Progress:
        """See WorkerHost.ping."""
        return self._host.ping()

    @ray.method(concurrency_group="control")
    def stacks(self) -> str:
        """See WorkerHost.stacks."""
        return self._host.stacks()

    @ray.method(concurrency_group="control")
    def request_stop(self) -> None:
        """See WorkerHost.request_stop."""
        self._host.request_stop()

    @ray.method(concurrency_group="control")
    def close(self) -> None:
        """See WorkerHost.close."""
        self._host.close()


class AttentionWorkerShell(WorkerShell):
    """A worker of an attention group."""


class ExpertWorkerShell(WorkerShell):
    """A worker of an expert group."""


class ColocatedWorkerShell(WorkerShell):
    """A worker that has attention and experts."""


# Never restarted by Ray: a new process has neither weights nor channels. Recovery is the run's.
OPTIONS: dict[str, Any] = {
    "num_cpus": 1,
    "max_restarts": 0,
    "max_task_retries": 0,
    "concurrency_groups": {"control": 1, "saving": 1},
    # Ray would keep the states of every call of every step
    "enable_task_events": False,
}
AttentionWorker: Any = ray.remote(**OPTIONS)(AttentionWorkerShell)
ExpertWorker: Any = ray.remote(**OPTIONS)(ExpertWorkerShell)
ColocatedWorker: Any = ray.remote(**OPTIONS)(ColocatedWorkerShell)
