"""A worker's process without Ray, around a runtime that is told what to do."""

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from disagmoe.actors.host import WorkerHost
from disagmoe.actors.messages import (
    Adopted,
    Call,
    FailureKind,
    Located,
    Restored,
    Saved,
    Started,
    Stopped,
    WorkerAssignment,
    WorkerFailure,
)
from disagmoe.errors import CheckpointError
from disagmoe.runtime.report import EvalReport
from disagmoe.runtime.saving import SavedPart
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.storage import Location
from tests.unit.actors.fakes import good_outcome, saved_part, step_report

CONFIG = SimpleNamespace(parallel=SimpleNamespace(attention_weights=[1.0, 2.0]))
ASSIGNMENT = cast(
    WorkerAssignment,
    SimpleNamespace(
        worker="A0.1",
        host="127.0.0.1",
        threads=1,
        config=CONFIG,
        train=SimpleNamespace(open=lambda: "T"),
        evaluation=None,
        resume=SimpleNamespace(step=3, place="/c/step-3"),
    ),
)


class FakeRuntime:
    """Does at step n what `steps[n]` says."""

    def __init__(self, **steps: Any) -> None:
        self.interpreter = SimpleNamespace(position=7, instruction="head m0", progressed_at_s=0.0)
        self.stopwatch = SimpleNamespace(take=dict)
        self.done: list[str] = []
        self._steps = steps

    def connect(self) -> None:
        self.done.append("connect")

    def run_step(self, step: int) -> Any:
        self.done.append(f"step {step}")
        outcome = self._steps.get(f"at_{step}", step_report(step))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def adopt(self, *what: Any) -> None:
        self.done.append(f"adopt {what}")

    def restore(self, place: Location) -> None:
        self.done.append(f"restore {place}")

    def saved(self, step: int) -> SavedPart:
        outcome = self._steps.get(f"saved_{step}", saved_part("A0.0"))
        if isinstance(outcome, Exception):
            raise outcome
        return cast(SavedPart, outcome)

    def evaluate(self) -> EvalReport:
        self.done.append("evaluate")
        return EvalReport(loss=1.0, valid_targets=2)

    def request_stop(self) -> None:
        self.done.append("request_stop")

    def close(self) -> None:
        self.done.append("close")


def host_of(runtime: FakeRuntime) -> WorkerHost:
    return WorkerHost(lambda assignment: cast(WorkerRuntime, runtime))


def test_calls_reach_the_runtime() -> None:
    runtime = FakeRuntime()
    host = host_of(runtime)
    started = host.setup(ASSIGNMENT)
    assert isinstance(started, Started)
    assert (started.worker, started.host) == ("A0.1", "127.0.0.1")
    assert host.restore(ASSIGNMENT) == Restored("A0.1")
    assert host.ping().call == "loading of the checkpoint of 3 steps"
    assert host.run_step(0) == step_report(0)
    assert host.evaluate(0) == EvalReport(loss=1.0, valid_targets=2)
    assert host.adopt(ASSIGNMENT, 0) == Adopted("A0.1")
    assert host.ping().call == "change of programs after step 0"
    host.request_stop()
    host.close()
    assert runtime.done == [
        "connect",
        "restore /c/step-3",
        "step 0",
        "evaluate",
        "adopt ('T', None, [1.0, 2.0])",
        "request_stop",
        "close",
    ]


def test_a_worker_says_where_it_is_before_it_is_set_up() -> None:
    def find(assignment: WorkerAssignment) -> Located:
        found = good_outcome(Call("locate"), assignment.worker)
        assert isinstance(found, Located)
        return found

    host = WorkerHost(lambda _: cast(WorkerRuntime, FakeRuntime()), find)
    assert host.locate(ASSIGNMENT) == good_outcome(Call("locate"), "A0.1")
    assert (host.ping().worker, host.ping().call) == ("A0.1", "placement")


def test_a_state_is_saved_while_steps_go_on_and_after_a_stop() -> None:
    error = CheckpointError("A0.1 cannot write")
    host = host_of(FakeRuntime(at_0=step_report(0, stopped=True), saved_2=error))
    host.setup(ASSIGNMENT)
    host.run_step(0)
    assert host.run_step(1) == Stopped()
    assert host.saved(1) == Saved("A0.1", saved_part("A0.0"))
    failure = host.saved(2)
    assert isinstance(failure, WorkerFailure)
    assert (failure.kind, failure.message) == (FailureKind.RAISED, "A0.1 cannot write")


def test_after_a_failure_no_call_is_made() -> None:
    runtime = FakeRuntime(at_1=ValueError("broken"))
    host = host_of(runtime)
    host.setup(ASSIGNMENT)
    host.run_step(0)
    failure = host.run_step(1)
    assert isinstance(failure, WorkerFailure)
    assert (failure.kind, failure.message) == (FailureKind.RAISED, "A0.1: ValueError: broken")
    assert host.run_step(2) is failure
    assert host.evaluate(2) is failure
    assert runtime.done == ["connect", "step 0", "step 1"]


def test_a_failed_setup_is_an_answer_too() -> None:
    def build(assignment: WorkerAssignment) -> WorkerRuntime:
        raise OSError("no store")

    failure = WorkerHost(build).setup(ASSIGNMENT)
    assert isinstance(failure, WorkerFailure)
    assert failure.message == "A0.1: OSError: no store"


def test_after_a_stopped_step_no_call_is_made() -> None:
    runtime = FakeRuntime(at_0=step_report(0, stopped=True))
    host = host_of(runtime)
    host.setup(ASSIGNMENT)
    assert host.run_step(0) == step_report(0, stopped=True)
    assert host.run_step(1) == Stopped()
    assert host.evaluate(0) == Stopped()
    assert runtime.done == ["connect", "step 0"]


def test_a_stop_that_is_asked_for_during_setup_is_kept() -> None:
    runtime = FakeRuntime()
    host = host_of(runtime)
    host.request_stop()
    host.setup(ASSIGNMENT)
    assert runtime.done == ["connect", "request_stop"]


def test_a_call_before_setup_is_our_mistake_and_is_reported() -> None:
    failure = host_of(FakeRuntime()).run_step(0)
    assert isinstance(failure, WorkerFailure)
    assert "AssertionError: the call came before setup" in failure.message


def test_a_ping_gives_the_instruction_only_if_it_belongs_to_this_call() -> None:
    runtime = FakeRuntime()
    host = host_of(runtime)
    assert host.ping().call == "idle"
    host.setup(ASSIGNMENT)
    host.run_step(3)
    before = host.ping()
    assert (before.worker, before.call) == ("A0.1", "step 3")
    assert (before.instruction_index, before.instruction) == (-1, "")
    assert str(before).startswith("A0.1: step 3, for ")
    runtime.interpreter.progressed_at_s = time.monotonic() + 100
    after = host.ping()
    assert (after.instruction_index, after.instruction) == (7, "head m0")
    assert after.seconds_since_progress == pytest.approx(-100, abs=5)


def test_stacks_name_the_threads_and_what_they_do() -> None:
    may_end = threading.Event()

    def wait_here() -> None:
        may_end.wait()

    thread = threading.Thread(target=wait_here, name="patient")
    thread.start()
    try:
        text = host_of(FakeRuntime()).stacks()
    finally:
        may_end.set()
        thread.join()
    _, _, stack = text.partition("thread patient:\n")
    assert "in wait_here" in stack
