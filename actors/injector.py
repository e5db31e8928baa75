"""Faults on purpose, for drills: what goes wrong on which worker at which step and phase.

A worker that is started with DISAGMOE_DRILL in its environment reads its part of the plan in the
folder that this names. Each fault happens once, however often its step is done again; a file says
when. Of those that end an epoch a process meets the first that has not happened when it starts and
no other, so that no two of them are mixed up. Nothing here is used by a run that nobody drills.
"""

import json
import os
import resource
import shutil
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch

from disagmoe.runtime.step import WorkerRuntime
from disagmoe.schedule.ir import BACKWARD_OPS, Compute, Instruction, Op, StepEnd

DRILL_VARIABLE = "DISAGMOE_DRILL"
_PLAN_FILE = "plan.json"

Kind = Literal["kill", "freeze", "exception", "memory", "nan", "full disk", "driver"]
Phase = Literal["forward", "backward", "reduction", "optimizer", "saving"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One fault."""

    number: int
    kind: Kind
    phase: Phase
    worker: str
    step: int
    """Steps that are done before it; more where it was too early for it, see `armed`."""
    skip: int = 0
    """Instructions of the phase that are done before it in that step."""
    again: bool = False
    """Whether it comes back each time that its step is done."""

    @property
    def ends_epoch(self) -> bool:
        """Whether workers are started again because of it."""
        return self.kind != "nan"


def write_plan(folder: Path, plan: Sequence[Injection]) -> None:
    """Let workers that are started with this folder find `plan`, none of which has happened yet,
    and forget an earlier one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    text = json.dumps([asdict(one) for one in plan])
    (folder / _PLAN_FILE).write_text(text, encoding="utf-8")


def read_plan(folder: Path) -> list[Injection]:
    """The inverse of `write_plan`."""
    entries = json.loads((folder / _PLAN_FILE).read_text(encoding="utf-8"))
    return [Injection(**entry) for entry in entries]


def fired_at(folder: Path, number: int) -> float | None:
    """When a fault happened, in seconds since the epoch of the system clock; None if not yet."""
    try:
        return (folder / f"fired-{number}").stat().st_mtime
    except FileNotFoundError:
        return None


def note_fired(folder: Path, number: int) -> bool:
    """Say that a fault happens now; False if it has happened before.

    Nothing is written but a name: a worker whose disk is full can do that too.
    """
    try:
        (folder / f"fired-{number}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def armed(folder: Path, plan: Iterable[Injection]) -> list[Injection]:
    """Return what of `plan` may happen in a process that starts now: what ends no epoch or comes
    back, and the first of the others that has not happened."""
    return [one for one in plan if one.again or not one.ends_epoch] + next_to_happen(folder, plan)


def next_to_happen(folder: Path, plan: Iterable[Injection]) -> list[Injection]:
    """Return the first of `plan` that ends an epoch and has not happened; [] where all have."""
    once = (one for one in plan if one.ends_epoch and not one.again)
    return [one for one in once if fired_at(folder, one.number) is None][:1]


def phase_of(instruction: Instruction) -> Phase | None:
    """The phase that an instruction belongs to; None for transfers and frees."""
    match instruction:
        case Compute(op=op):
            return "backward" if op in BACKWARD_OPS else "forward"
        case StepEnd(op=Op.UPDATE):
            return "optimizer"
        case StepEnd():
            return "reduction"
        case _:
            return None


def install(runtime: WorkerRuntime, worker: str, environ: Mapping[str, str]) -> None:
    """Make the faults of `worker` happen in `runtime`, if there is a drill in `environ`."""
    folder = environ.get(DRILL_VARIABLE)
    if not folder:
        return
    due = armed(Path(folder), read_plan(Path(folder)))
    own = [one for one in due if one.worker == worker and one.kind != "driver"]
    if own:
        injector = Injector(Path(folder), own, runtime)
        runtime.interpreter.probe = injector.at_instruction
        if runtime.saver is not None:
            runtime.saver.probe = injector.at_save


class Injector:
    """The faults of one worker."""

    def __init__(self, folder: Path, plan: Sequence[Injection], runtime: WorkerRuntime) -> None:
        self._folder = folder
        self._plan = plan
        self._runtime = runtime
        self._seen = 0
        self._step = -1

    def at_instruction(self, instruction: Instruction) -> None:
        """Called before each instruction."""
        step = self._runtime.step_under_way
        if step != self._step:
            self._step, self._seen = step, 0
        phase = phase_of(instruction)
        if phase is None:
            return
        fault = self._due(step, phase)
        if fault is None:
            return
        if self._seen < fault.skip:
            self._seen += 1
            return
        self._fire(fault)

    def at_save(self, done: int) -> None:
        """Called by the thread that writes the state after `done` steps, before it does."""
        fault = self._due(done - 1, "saving")
        if fault is not None:
            self._fire(fault)

    def _due(self, step: int, phase: Phase) -> Injection | None:
        for fault in self._plan:
            late = step > fault.step and fault.ends_epoch and not fault.again
            if fault.phase == phase and (step == fault.step or late):
                return fault
        return None

    def _fire(self, fault: Injection) -> None:
        if not note_fired(self._folder, fault.number) and not fault.again:
            return
        match fault.kind:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "exception":
                raise RuntimeError(f"drill: fault {fault.number}")
            case "memory":
                torch.empty(2**50, dtype=torch.uint8)
            case "nan":
                for segment in self._runtime.parameters.segments.values():
                    segment.flat_grad.view(-1)[:1] = torch.nan  # a segment may be empty
            case "full disk":
                # as good as: no file of this process may grow any more
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            case "driver":
                raise AssertionError("workers do not inject that")
