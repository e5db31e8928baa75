"""What a run tells the script, in order: started, steps and what lies between them, one end."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from disagmoe.actors.messages import Started, WorkerFailure
from disagmoe.config.run import RunConfig
from disagmoe.runtime.report import HopCounts
from disagmoe.runtime.trace import WorkerTrace
from disagmoe.schedule.accounting import Shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a worker is, and what it has there."""

    worker: str
    node: str
    """Id of its node in Ray."""
    host: str
    pid: int
    gpu: int | None
    """Number of its GPU on the node; None on CPU."""
    device: str
    """Name of its GPU, or `cpu`."""
    nics: tuple[str, ...]
    """Network devices that are its own; () where the libraries choose."""
    environment: Mapping[str, str]
    """What NCCL and gloo are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlaced:
    """All workers are where they should be, and see the files of the run."""

    seats: tuple[Seat, ...]


def devices_of(placed: RunPlaced) -> dict[str, str]:
    """Return the name of each worker's device."""
    return {seat.worker: seat.device for seat in placed.seats}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """All workers are connected."""

    workers: tuple[Started, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One optimizer step of the whole run."""

    step: int
    """Number of the step, from 0."""
    loss: float
    """Cross-entropy per valid target, in nats."""
    balance: float
    """Load-balancing loss summed over layers, before its coefficient."""
    z: float
    """Router z-loss summed over layers, before its coefficient."""
    grad_norm: float
    """Global gradient norm before clipping."""
    lr: float
    tokens: int
    valid_targets: int
    skipped: str
    """Why the update was left out, or empty."""
    stopped: bool
    """Whether the run ends here because it was asked to."""
    saving: bool
    """Whether the state after it is being saved."""
    step_s: float
    """Time since the end of the call before."""
    tokens_per_s: float
    compute_share: dict[str, float]
    """Share of time that the workers of each group compute."""
    shares: dict[str, Shares]
    """Utilisation, exposed communication and bubble of each group."""
    seconds: dict[str, dict[str, float]]
    """Time of each worker by kind; adds up to its wall time since its last step."""
    channel_bytes: dict[str, int]
    """What all workers sent on each channel: payloads, counts, sums. A part for oneself is no
    message."""
    channel_messages: dict[str, int]
    """In how many messages."""
    hops: dict[str, HopCounts]
    """What all workers sent between attention and experts, by hop: `inter`, across the network; and
    `intra`, inside hosts, where rows go in two hops."""
    expert_load: tuple[float, ...]
    """Per layer that has experts: choices that fell on the busiest expert, over the mean."""
    expert_variation: tuple[float, ...]
    """Of the same layers: coefficient of variation of the choices over experts."""
    dead_experts: tuple[int, ...]
    """Of the same layers: experts without a choice."""
    peak_memory_bytes: dict[str, int]
    """Largest memory of each worker so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTraced:
    """What each worker did when in the step just reported."""

    traces: dict[str, WorkerTrace]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTuned:
    """The steps after this one run on programs made for what the steps before it have cost."""

    config: RunConfig
    """The resolved config of the rest of the run, with costs, depth and shares filled in."""
    seconds: dict[str, float]
    """What was measured, by the names of the costs, per micro-batch."""
    expert_shares: list[float]
    """Shares that would suit the expert workers better; [] where those in use do."""
    planned_s: float
    """Planned duration of a step, without the sums and the update at its end."""
    gap: float
    """Planned duration over its lower bound."""
    programs_sha256: str
    """Hash of the programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """Loss on held-out data."""

    step: int
    """The step after which it was measured."""
    loss: float
    valid_targets: int
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed:
    """All workers have the state of a checkpoint; the next step is number `step`."""

    step: int
    place: str
    """The checkpoint."""
    elapsed_s: float
    """Time to load it."""
    same_programs: bool
    """Whether the workers run what those ran that saved it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint is complete."""

    step: int
    """Steps done in it."""
    place: str
    """Its directory or URI."""
    size_bytes: int
    """Of all files together."""
    elapsed_s: float
    """From the end of its step until it was complete; training went on meanwhile."""
    deleted: tuple[int, ...]
    """Steps of older ones that were deleted."""
    problem: str
    """Why older ones could not be deleted, or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The last event. Failures are in order of cause."""

    status: Literal["ok", "failed", "stopped"]
    failures: tuple[WorkerFailure, ...] = ()
    note: str = ""
    """Why it does not go on, where one might expect that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRestarting:
    """Workers have failed and are gone; others will go on from the last complete checkpoint."""

    epoch: int
    """How often workers have been started again, with this time."""
    cause: str
    message: str
    """The first cause."""
    failures: tuple[WorkerFailure, ...]
    """All of them, in order of cause."""
    step: int
    """Steps done in the checkpoint; 0 begins anew."""
    steps_lost: int
    """Steps that were done after it."""
    pause_s: float
    """Until they are started."""


Event = (
    RunPlaced
    | RunStarted
    | RunRestarting
    | RunResumed
    | StepResult
    | StepTraced
    | ScheduleTuned
    | EvalResult
    | CheckpointSaved
    | RunEnded
)
