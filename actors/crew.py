"""All workers of a run as one: what the driving loop asks of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from disagmoe.actors.messages import Call, Outcome, Progress, WorkerAssignment

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """What one worker answered to one call."""

    call: Call
    worker: str
    outcome: Outcome


class Crew(Protocol):
    """The workers of one epoch."""

    @property
    def workers(self) -> Sequence[str]:
        """Their names in world-rank order."""

    def assign(self, assignments: Sequence[WorkerAssignment]) -> None:
        """Give each worker something else to set up or to adopt by the next such call."""

    def start(self, call: Call) -> None:
        """Queue `call` on every worker, behind the calls queued before; `saved` beside them."""

    def poll(self, timeout_s: float) -> list[Reply]:
        """Wait for replies; return those that are here, [] when none comes within `timeout_s`.

        A dead worker replies with a WorkerFailure to each call that it has not answered.
        """

    def ping(self, timeout_s: float) -> Mapping[str, Progress]:
        """Ask all workers where they are; without those that do not answer."""

    def stacks(self, timeout_s: float) -> Mapping[str, str]:
        """Ask all workers for their stacks; without those that do not answer."""

    def request_stop(self) -> None:
        """Make the step under way, or the next one, the last."""

    def kill(self) -> None:
        """End all worker processes."""


def all_of(kind: type[T], outcomes: Mapping[str, Outcome]) -> dict[str, T]:
    """Return `outcomes` by worker, which are all of the type `kind`."""
    typed: dict[str, T] = {}
    for worker, outcome in outcomes.items():
        if not isinstance(outcome, kind):
            raise AssertionError(f"{worker} answered {outcome!r}, expected {kind.__name__}")
        typed[worker] = outcome
    return typed
