"""A crew without processes, and reports for it."""

import math
from collections.abc import Callable, Mapping, Sequence

from disagmoe.actors.crew import Reply
from disagmoe.actors.messages import (
    Adopted,
    Call,
    FailureKind,
    Located,
    Outcome,
    Progress,
    Restored,
    Saved,
    Started,
    WorkerAssignment,
    WorkerFailure,
)
from disagmoe.checkpoint.manifest import FileEntry
from disagmoe.checkpoint.part import Part
from disagmoe.checkpoint.slices import Slice
from disagmoe.data.position import DataPosition
from disagmoe.model.names import saved_shapes
from disagmoe.runtime.report import EvalReport, HopCounts, StepReport
from disagmoe.runtime.saving import SavedPart
from disagmoe.schedule.accounting import Kind
from disagmoe.transport.counted import Traffic
from tests.unit.checkpoint.saved import TINY

WORKERS = ("A0.0", "F0.0")


def step_report(
    step: int, *, stopped: bool = False, saving: bool = False, compute_s: float = 1.0
) -> StepReport:
    """What a worker might report; the loss says which step it was."""
    return StepReport(
        step=step,
        loss=5.0 - step,
        balance=2.0,
        z=3.0,
        grad_norm=0.5,
        lr=1e-3,
        tokens=100,
        valid_targets=90,
        skipped="",
        stopped=stopped,
        saving=saving,
        choices_LE=((10, 30), (20, 20), (0, 0)),
        seconds=dict.fromkeys(Kind, 0.0) | {Kind.COMPUTE: compute_s, Kind.RECV_WAIT: 1.0},
        traffic={"A0>F0.act": Traffic(2, 64), "world": Traffic(1, 8)},
        hops={"inter": HopCounts(rows=30, exact_rows=30, nbytes=64)},
        peak_memory_bytes=1000 + step,
    )


def good_outcome(call: Call, worker: str) -> Outcome:
    """What a worker without trouble answers."""
    match call.kind:
        case "locate":
            return Located(
                worker=worker,
                node="n",
                host="127.0.0.1",
                pid=1,
                gpu_ids=(),
                visible_gpus=(),
                node_gpus=(),
                nics=(),
                environment={},
                versions={},
                files="",
            )
        case "setup":
            return Started(worker=worker, host="127.0.0.1", pid=1, versions={"python": "3"})
        case "step":
            return step_report(call.step)
        case "eval":
            return EvalReport(loss=7.0, valid_targets=10)
        case "adopt":
            return Adopted(worker)
        case "restore":
            return Restored(worker)
        case "saved":
            return Saved(worker, saved_part(worker))


def saved_part(worker: str) -> SavedPart:
    """One of two halves of all that a checkpoint of the model of configs/tiny.toml holds."""
    file = FileEntry(name=f"{worker}.safetensors", worker=worker, size_bytes=100, sha256=["00"])
    slices = []
    for name, shape in saved_shapes(TINY.model).items():
        size = math.prod(shape)
        start, stop = (0, size // 2) if worker == WORKERS[0] else (size // 2, size)
        slices.append(Slice(name, shape, start, stop))
    data = DataPosition(mixed=8) if worker == WORKERS[0] else None
    return SavedPart(Part(file, tuple(slices)), updates=3, data=data)


class FakeClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class FakeCrew:
    """Answers each call at once through `answer`, one worker per poll, taking a second each.

    A worker for which `answer` returns None says nothing; then a poll takes its whole timeout.
    """

    def __init__(
        self,
        clock: FakeClock,
        answer: Callable[[Call, str], Outcome | None] = good_outcome,
        workers: Sequence[str] = WORKERS,
        silent: Sequence[str] = (),
    ) -> None:
        self.workers = tuple(workers)
        self.started: list[Call] = []
        self.assigned: list[Sequence[WorkerAssignment]] = []
        self.most_queued = 0
        self.killed = 0
        self._clock = clock
        self._answer = answer
        self._silent = silent
        self._replies: list[Reply] = []

    def assign(self, assignments: Sequence[WorkerAssignment]) -> None:
        if any(reply.call.kind != "saved" for reply in self._replies):
            raise AssertionError("calls are under way")
        self.assigned.append(assignments)

    def start(self, call: Call) -> None:
        self.started.append(call)
        for worker in self.workers:
            outcome = self._answer(call, worker)
            if outcome is not None:
                self._replies.append(Reply(call, worker, outcome))
        queued = {reply.call for reply in self._replies}
        self.most_queued = max(self.most_queued, len(queued))

    def reply(self, call: Call, worker: str, outcome: Outcome) -> None:
        """Let the next poll return this."""
        self._replies.append(Reply(call, worker, outcome))

    def poll(self, timeout_s: float) -> list[Reply]:
        if not self._replies:
            self._clock.now_s += timeout_s
            return []
        self._clock.now_s += 1
        return [self._replies.pop(0)]

    def ping(self, timeout_s: float) -> Mapping[str, Progress]:
        return {
            worker: Progress(
                worker=worker,
                call="step 1",
                instruction_index=3,
                instruction="wait x" if worker.startswith("A") else "experts_fwd L0 m0",
                seconds_since_progress=9.0,
            )
            for worker in self.workers
            if worker not in self._silent
        }

    def send_pings(self, workers: Sequence[str]) -> None:
        answers = self.ping(0.0)
        for worker in workers:
            if worker in answers:
                self._replies.append(Reply(Call("ping"), worker, answers[worker]))

    def stacks(self, timeout_s: float) -> Mapping[str, str]:
        return {w: f"stack of {w}" for w in self.workers if w not in self._silent}

    def request_stop(self) -> None:
        raise AssertionError("nobody asks the fake crew to stop")

    def kill(self) -> None:
        self.killed += 1


def failure(worker: str, kind: str, at_s: float = 0.0) -> WorkerFailure:
    """A failure whose message is worker and kind."""
    return WorkerFailure(
        worker=worker, kind=FailureKind(kind), message=f"{worker} {kind}", at_s=at_s
    )
