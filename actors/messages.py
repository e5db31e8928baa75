"""Frozen values that cross processes: what workers are told and what they answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from disagmoe.actors.markers import Markers
from disagmoe.actors.packed import Packed
from disagmoe.actors.sysfs import Gpu, Nic
from disagmoe.checkpoint.manifest import Done
from disagmoe.config.run import RunConfig
from disagmoe.data.position import Origin
from disagmoe.runtime.report import EvalReport, StepReport
from disagmoe.runtime.saving import SavedPart

if TYPE_CHECKING:  # takes a second to import
    from ray.util.scheduling_strategies import SchedulingStrategyT


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The checkpoint that workers load before their first step."""

    place: str
    """Its directory or URI."""
    done: Done
    """What had been done."""
    origin: Origin
    """Where the data goes on."""
    programs_sha256: str
    """Of the programs that ran before."""

    @property
    def step(self) -> int:
        """Steps done, and number of the next one."""
        return self.done.step


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a worker goes."""

    node: str
    """Id of its node in Ray."""
    host: str
    """Address of its node, which it binds to."""
    cpus: int
    """CPUs of the node for each of the workers on it."""
    all_gpus: bool = False
    """Whether this run has all GPUs of the node, so that idle ones are nobody else's."""
    strategy: "SchedulingStrategyT" = None
    """How Ray gets it there; None where there is one node only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What the script asks of the driver."""

    config: RunConfig
    """Resolved; its data paths mean the same in every process."""
    run_dir: str
    """Absolute path of the run directory, which exists."""
    run_id: str
    """Part of all names that Ray gets, so that runs on one cluster are told apart."""
    host: str
    """Address of the driver's machine, which the store binds to."""
    places: Mapping[str, Place]
    """Where each worker goes, by its name."""
    markers: Markers
    """What the driver and all workers leave in the run directory and look for."""
    threads_per_worker: int
    cpus_per_worker: float = 1.0
    """What each worker claims of its node's CPUs in Ray."""
    gpus_per_worker: float = 0.0
    """Share of a GPU, so that Ray shows each worker its own."""
    epoch: int = 0
    """Counts restarts of the workers; channels of different epochs never meet."""
    checkpoints: str = ""
    """Folder or URI to save to; empty for a run that saves nothing."""
    resume: ResumePoint | None = None
    """Where to go on; None begins anew."""

    @property
    def ray_name(self) -> str:
        """What names in Ray begin with."""
        return ray_name(self.run_id)


def ray_name(run_id: str) -> str:
    """Name of the placement group of a run, and what its actors' names begin with."""
    return f"disagmoe-{run_id}"


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
    checkpoints: str
    resume: ResumePoint | None
    markers: Markers
    """What to find and to leave in the run directory."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that NCCL and gloo read."""
    metrics_port: int = 0
    """Where it serves its metrics, or the next free port; 0 lets the system choose."""


@dataclass(frozen=True, slots=True)
class Call:
    """One thing that all workers do together."""

    kind: Literal["locate", "setup", "restore", "step", "eval", "adopt", "saved", "ping"]
    step: int = 0
    """The step to do, from 0; for an evaluation or a change of programs the step after which it
    happens; for a checkpoint the steps done in it."""

    def __str__(self) -> str:
        match self.kind:
            case "locate":
                return "placement"
            case "setup":
                return "start-up"
            case "step":
                return f"step {self.step}"
            case "eval":
                return f"evaluation after step {self.step}"
            case "adopt":
                return f"change of programs after step {self.step}"
            case "restore":
                return f"loading of the checkpoint of {self.step} steps"
            case "saved":
                return f"saving after {self.step} steps"
            case "ping":
                return "ping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """What a worker finds where it is."""

    worker: str
    node: str
    """Id of its node in Ray."""
    host: str
    pid: int
    gpu_ids: tuple[int, ...]
    """Numbers of the GPUs that Ray has given it, on its node."""
    visible_gpus: tuple[Gpu, ...]
    """Those that torch sees; () on CPU."""
    node_gpus: tuple[Gpu, ...]
    """All GPUs of the node."""
    nics: tuple[Nic, ...]
    """All network devices of the node."""
    environment: Mapping[str, str]
    """What NCCL and gloo are told on this node, by whoever has set it up."""
    versions: Mapping[str, str]
    """Of Python and the libraries that decide results."""
    files: str = ""
    """What is wrong with the files that it needs; empty for nothing."""


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
class Restored:
    """A worker has taken over the state of a checkpoint."""

    worker: str


@dataclass(frozen=True, slots=True)
class Saved:
    """A worker's part of a checkpoint is durable."""

    worker: str
    saved: SavedPart


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
    MEMORY = "memory"
    """It ran out of memory."""
    PREEMPTED = "preempted"
    """Its node was taken away, with notice."""
    TRANSPORT = "transport"
    """A transfer failed, most often because the peer has failed."""
    UNFIT = "unfit"
    """Its node is not what was asked for, or does not see the files of the run."""


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
    step: int = 0
    """The step of that call."""
    awaits: tuple[str, ...] = ()
    """Workers without which it cannot go on."""

    @property
    def where(self) -> str:
        """The call, the instruction, whom it waits for and for how long."""
        at = f", instruction {self.instruction_index} '{self.instruction}'"
        peers = f", waits for {' '.join(self.awaits)}" if self.awaits else ""
        since_s = self.seconds_since_progress
        return f"{self.call}{at if self.instruction else ''}{peers}, for {since_s:.1f} s"

    def __str__(self) -> str:
        return f"{self.worker}: {self.where}"


Outcome = (
    Located
    | Started
    | Restored
    | StepReport
    | EvalReport
    | Adopted
    | Saved
    | Stopped
    | Progress
    | WorkerFailure
)
"""What a worker answers to a call."""
