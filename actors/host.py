"""One worker's process, seen from outside: set up, steps, and answers while a step runs.

Needs no Ray; `worker.py` is the actor around it.
"""

import logging
import time
from collections.abc import Callable

from disagmoe.actors.failure import failure_of
from disagmoe.actors.locate import locate
from disagmoe.actors.messages import (
    Adopted,
    Call,
    Located,
    Outcome,
    Progress,
    Restored,
    Saved,
    Started,
    Stopped,
    WorkerAssignment,
    WorkerFailure,
)
from disagmoe.actors.stacks import all_stacks
from disagmoe.actors.startup import build_runtime, started
from disagmoe.runtime.report import StepReport
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.storage import Location

log = logging.getLogger(__name__)


class WorkerHost:
    """Owns the runtime. After a failure or a stop it makes no further call."""

    def __init__(
        self,
        build: Callable[[WorkerAssignment], WorkerRuntime] = build_runtime,
        find: Callable[[WorkerAssignment], Located] = locate,
    ) -> None:
        self._build = build
        self._find = find
        self._connected: WorkerRuntime | None = None
        self._worker = "a worker without assignment"
        self._call = "idle"
        self._call_since_s = time.monotonic()
        self._stop_requested = False
        self._ended: Stopped | WorkerFailure | None = None

    def locate(self, assignment: WorkerAssignment) -> Outcome:
        """Say where this process is, and what it sees there."""
        self._worker = assignment.worker
        return self._guarded(Call("locate"), lambda: self._find(assignment))

    def setup(self, assignment: WorkerAssignment) -> Outcome:
        """Build the runtime and connect it to its peers, after leaving an earlier one."""
        self.close()
        self._connected, self._ended = None, None
        self._worker = assignment.worker

        def start() -> Started:
            runtime = self._build(assignment)
            runtime.connect()
            runtime.stopwatch.take()  # seconds are counted from here
            self._connected = runtime
            if self._stop_requested:
                runtime.request_stop()
            return started(assignment)

        return self._guarded(Call("setup"), start)

    def restore(self, assignment: WorkerAssignment) -> Outcome:
        """Take over the state of the checkpoint that `assignment` names."""
        point = assignment.resume
        assert point is not None

        def load() -> Restored:
            self._runtime.restore(Location.parse(point.place))
            self._runtime.stopwatch.take()
            return Restored(self._worker)

        return self._guarded(Call("restore", point.step), load)

    def saved(self, step: int) -> Outcome:
        """Wait until the state after `step` steps is durable. For another thread than the one that
        makes the other calls, and after a stop too."""
        try:
            return Saved(self._worker, self._runtime.saved(step))
        except Exception as error:
            log.exception("%s has not saved its state after %d steps", self._worker, step)
            return failure_of(self._worker, error)

    def run_step(self, step: int) -> Outcome:
        """Do one step, unless the run has ended here before."""
        outcome = self._guarded(Call("step", step), lambda: self._runtime.run_step(step))
        if isinstance(outcome, StepReport) and outcome.stopped:
            self._ended = Stopped()
        return outcome

    def evaluate(self, after_step: int) -> Outcome:
        """Return the loss on held-out data, unless the run has ended here before."""
        return self._guarded(Call("eval", after_step), lambda: self._runtime.evaluate())

    def adopt(self, assignment: WorkerAssignment, after_step: int) -> Outcome:
        """Go on with the programs and attention shares of `assignment`; the rest of it is that of
        the set-up."""

        def change() -> Adopted:
            weights = assignment.config.parallel.attention_weights
            packed = assignment.evaluation
            evaluation = None if packed is None else packed.open()
            self._runtime.adopt(assignment.train.open(), evaluation, weights)
            self._runtime.stopwatch.take()  # the driver has made them meanwhile
            return Adopted(self._worker)

        return self._guarded(Call("adopt", after_step), change)

    def _guarded(self, call: Call, action: Callable[[], Outcome]) -> Outcome:
        if self._ended is not None:
            return self._ended
        self._call, self._call_since_s = str(call), time.monotonic()
        try:
            return action()
        except Exception as error:
            log.exception("%s failed in %s", self._worker, call)
            self._ended = failure_of(self._worker, error)
            return self._ended

    def ping(self) -> Progress:
        """Say where this worker is. For another thread than the one that makes the calls."""
        index, instruction, since_s = -1, "", self._call_since_s
        if self._connected is not None:
            interpreter = self._connected.interpreter
            if interpreter.progressed_at_s >= since_s:
                index, instruction = interpreter.position, interpreter.instruction
                since_s = interpreter.progressed_at_s
        return Progress(
            worker=self._worker,
            call=self._call,
            instruction_index=index,
            instruction=instruction,
            seconds_since_progress=time.monotonic() - since_s,
        )

    def stacks(self) -> str:
        """Return the stacks of all threads of this process."""
        return f"{self._worker}\n{all_stacks()}"

    def request_stop(self) -> None:
        """Make the step under way, or the next one, the last on all workers."""
        self._stop_requested = True
        if self._connected is not None:
            self._connected.request_stop()

    def close(self) -> None:
        """Leave all channels."""
        if self._connected is not None:
            self._connected.close()

    @property
    def _runtime(self) -> WorkerRuntime:
        if self._connected is None:
            raise AssertionError("the call came before setup")
        return self._connected
