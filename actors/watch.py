"""What the driver knows of its workers beside their answers: places, steps, and the last paces."""

import os
from collections.abc import Mapping, Sequence

from disagmoe.actors.events import Event, RunPlaced, RunResumed, Seat, StepResult
from disagmoe.actors.messages import Progress
from disagmoe.actors.standing import Standing, Survey


class Watch:
    """Learns from events; turns progress into a survey. Read from other threads too."""

    def __init__(self, epoch: int = 0) -> None:
        self._epoch = epoch
        self._seats: Mapping[str, Seat] = {}
        self._steps_done = 0
        self._compute_s: Mapping[str, float] = {}

    def see(self, event: Event) -> None:
        """Take in an event of the run."""
        match event:
            case RunPlaced():
                self._seats = {seat.worker: seat for seat in event.seats}
            case RunResumed():
                self._steps_done = event.step
            case StepResult():
                self._steps_done = event.step + 1
                self._compute_s = {w: s.get("compute", 0.0) for w, s in event.seconds.items()}
            case _:
                pass

    def survey(
        self,
        workers: Sequence[str],
        progress: Mapping[str, Progress],
        stacks: Mapping[str, str] | None = None,
    ) -> Survey:
        """Where the run stands, when `workers` have answered with `progress`."""
        return Survey(
            standings=tuple(self._standing(worker, progress.get(worker)) for worker in workers),
            steps_done=self._steps_done,
            epoch=self._epoch,
            compute_s=self._compute_s,
            driver_pid=os.getpid(),
            stacks=stacks or {},
        )

    def _standing(self, worker: str, progress: Progress | None) -> Standing:
        seat = self._seats.get(worker)
        return Standing(
            worker=worker,
            host=seat.host if seat else "",
            gpu=seat.gpu if seat else None,
            pid=seat.pid if seat else None,
            progress=progress,
        )
