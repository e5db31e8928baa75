"""Frozen values that cross processes: what workers are told and what they answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from disagmoe.actors.packed import Packed
from disagmoe.config.run import RunConfig
from disagmoe.runtime.report import EvalReport, StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What the script asks of the driver."""

    config: RunConfig
    """Resolved; its data paths mean the same in every process."""
    run_dir: str
    """Absolute path of the run directory, which exists."""
    host: str
    """Address of the driver's machine, which the store binds to."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Address that each worker binds to, by its name; `host` for those that are not in it."""
    threads_per_worker: int
    gpus_per_worker: float = 0.0
    """Share of a GPU, so that Ray shows each worker its own."""
    epoch: int = 0
    """Counts restarts of the workers; channels of different epochs never meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAssignment:
    """All that one worker needs to start."""

    config: RunConfig
    worker: str
    """Its name, such as `A0.1`."""
    train: Packed
    evaluation: Packed | None
    host: str
    """Address of its machine that it binds to."""
    store_host: str
    store_port: int
    epoch: int
    threads: int
    log_file: str
    metrics_port: int = 0
    """Where it serves its metrics, or the next free port; 0 lets the system choose."""


@dataclass(frozen=True, slots=True)
class Call:
    """One thing that all workers do together."""

    kind: Literal["setup", "step", "eval", "adopt"]
    step: int = 0
    """The step to do, from 0; for an evaluation or a change of programs the step after which it
    happens."""

    def __str__(self) -> str:
        match self.kind:
            case "setup":
                return "start-up"
            case "step":
                return f"step {self.step}"
            case "eval":
                return f"evaluation after step {self.step}"
            case "adopt":
                return f"change of programs after step {self.step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A worker is connected to all its peers."""

    worker: str
    host: str
    pid: int
    versions: dict[str, str]
    """Of Python and the libraries that decide its results."""
    metrics_port: int | None = None
    """Where it serves its metrics; None where it cannot."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A worker goes on with other programs."""

    worker: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The call was not made, because the run was stopped at an earlier step."""


class FailureKind(StrEnum):
    """How a worker failed."""

    DIED = "died"
    """Its process is gone."""
    RAISED = "raised"
    """It raised an error of its own."""
    SILENT = "silent"
    """Its process answers nothing any more."""
    LATE = "late"
    """It has not finished in time."""
    TRANSPORT = "transport"
    """A transfer failed, most often because the peer has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailure:
    """Why a worker cannot go on."""

    worker: str
    kind: FailureKind
    message: str
    """One or a few lines; starts with the worker's name."""
    details: str = ""
    """A traceback, or what else helps to find the cause."""
    at_s: float
    """When it was noticed, in seconds since the epoch of the system clock."""


Outcome = Started | StepReport | EvalReport | Adopted | Stopped | WorkerFailure
"""What a worker answers to a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a worker is, answered while a step runs."""

    worker: str
    call: str
    """The call under way or last done, such as `step 7`."""
    instruction_index: int
    """Position in the program; -1 before the first instruction."""
    instruction: str
    seconds_since_progress: float

    def __str__(self) -> str:
        at = f"instruction {self.instruction_index} '{self.instruction}'"
        where = f"{self.call}, {at}" if self.instruction else self.call
        return f"{self.worker}: {where}, for {self.seconds_since_progress:.1f} s"
