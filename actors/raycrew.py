"""The workers of a run as Ray actors."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayError

from disagmoe.actors.crew import Reply
from disagmoe.actors.failure import died, evicted, failure_of
from disagmoe.actors.messages import Call, Outcome, Progress, RunPlan, WorkerAssignment
from disagmoe.actors.worker import AttentionWorker, ColocatedWorker, ExpertWorker
from disagmoe.schedule.layout import Side, Worker

_GATHER_S = 0.02
"""How long replies of all workers are collected after the first. Meanwhile the cores are theirs:
they come to the end of a step together, and have calls queued, so that they do not wait."""


class RayCrew:
    """See Crew. The actors live as long as this object's process, or until `kill`."""

    def __init__(
        self,
        assignments: Sequence[WorkerAssignment],
        plan: RunPlan,
        actor_class: Callable[[str], Any] | None = None,
    ) -> None:
        """Create one actor per assignment, where `plan` says, with its share of CPUs and GPU;
        `actor_class` gives another class than that of its side, by name."""
        self._assignments = {item.worker: item for item in assignments}
        self._actors = spawn(self._assignments, plan, actor_class or _actor_class)
        self._waiting: dict[Any, tuple[Call, str]] = {}

    @property
    def workers(self) -> Sequence[str]:
        """See Crew."""
        return tuple(self._actors)

    def assign(self, assignments: Sequence[WorkerAssignment]) -> None:
        """See Crew. To set up again takes a new epoch; for who compares runs and does not want to
        pay for new processes."""
        given = {item.worker: item for item in assignments}
        if given.keys() != self._actors.keys():
            raise AssertionError(f"{list(given)} are other workers than {list(self._actors)}")
        self._assignments = given

    def start(self, call: Call) -> None:
        """See Crew."""
        for name in self._actors:
            self._waiting[self._submit(call, name)] = (call, name)

    def _submit(self, call: Call, name: str) -> Any:
        actor = self._actors[name]
        match call.kind:
            case "locate":
                return actor.locate.remote(self._assignments[name])
            case "setup":
                return actor.setup.remote(self._assignments[name])
            case "step":
                return actor.run_step.remote(call.step)
            case "eval":
                return actor.evaluate.remote(call.step)
            case "adopt":
                return actor.adopt.remote(self._assignments[name], call.step)
            case "restore":
                return actor.restore.remote(self._assignments[name])
            case "saved":
                return actor.saved.remote(call.step)
            case "ping":
                return actor.ping.remote()

    def poll(self, timeout_s: float) -> list[Reply]:
        """See Crew."""
        if not self._waiting:
            time.sleep(timeout_s)
            return []
        done, _ = ray.wait(list(self._waiting), num_returns=1, timeout=timeout_s)
        if done:
            # the others are about to answer, and a call to Ray for each of them would cost the most
            expected = min(len(self._waiting), len(self._actors))
            done, _ = ray.wait(list(self._waiting), num_returns=expected, timeout=_GATHER_S)
        try:
            outcomes = ray.get(done)
        except RayError:
            outcomes = [self._outcome(ref) for ref in done]
        return [
            Reply(*self._waiting.pop(ref), outcome)
            for ref, outcome in zip(done, outcomes, strict=True)
        ]

    def _outcome(self, ref: Any) -> Outcome:
        _, name = self._waiting[ref]
        try:
            outcome: Outcome = ray.get(ref)
        except RayActorError as error:
            return died(name, str(error), preempted=error.preempted)
        except OutOfMemoryError as error:  # no RayActorError, though the actor is as dead
            return evicted(name, str(error))
        except RayError as error:
            return failure_of(name, error)
        return outcome

    def ping(self, timeout_s: float) -> Mapping[str, Progress]:
        """See Crew."""
        return self._ask("ping", timeout_s)

    def send_pings(self, workers: Sequence[str]) -> None:
        """See Crew."""
        for name in workers:
            self._waiting[self._submit(Call("ping"), name)] = (Call("ping"), name)

    def stacks(self, timeout_s: float) -> Mapping[str, str]:
        """See Crew."""
        return self._ask("stacks", timeout_s)

    def _ask(self, method: str, timeout_s: float) -> dict[str, Any]:
        refs = {getattr(actor, method).remote(): name for name, actor in self._actors.items()}
        done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=timeout_s)
        answers = {}
        for ref in done:
            try:
                answers[refs[ref]] = ray.get(ref, timeout=timeout_s)
            except (RayError, GetTimeoutError):
                continue  # no answer is the answer
        return {name: answers[name] for name in self._actors if name in answers}

    def request_stop(self) -> None:
        """See Crew."""
        for actor in self._actors.values():
            actor.request_stop.remote()

    def kill(self) -> None:
        """See Crew."""
        for actor in self._actors.values():
            ray.kill(actor, no_restart=True)


def spawn(
    workers: Iterable[str], plan: RunPlan, actor_class: Callable[[str], Any]
) -> dict[str, Any]:
    """Create one actor per worker, of the class that `actor_class` gives by name, where `plan`
    says, with its share of CPUs and GPU."""
    return {
        name: actor_class(name)
        .options(
            name=f"{plan.ray_name}/e{plan.epoch}/{name}",
            num_cpus=plan.cpus_per_worker,
            num_gpus=plan.gpus_per_worker,
            scheduling_strategy=plan.places[name].strategy,
        )
        .remote()
        for name in workers
    }


_ACTORS = {
    Side.ATTENTION: AttentionWorker,
    Side.EXPERT: ExpertWorker,
    Side.COLOCATED: ColocatedWorker,
}


def _actor_class(name: str) -> Any:
    return _ACTORS[Worker.parse(name).group.side]
