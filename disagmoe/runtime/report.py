"""What a step and an evaluation report; plain values that cross processes."""

from dataclasses import dataclass

from disagmoe.runtime.trace import WorkerTrace
from disagmoe.transport.counted import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class HopCounts:
    """What went over one hop between attention and experts in a step."""

    rows: int
    """Rows on their way to the experts, one of whom may be the sender itself."""
    exact_rows: int
    """Rows that the routing decisions ask for: distinct pairs of a token and a worker (a host, on
    the first of two hops), or all choices where rows go once to each expert."""
    nbytes: int
    """Payloads of both ways, forward and backward, without what a worker sends itself."""

    def __add__(self, other: "HopCounts") -> "HopCounts":
        return HopCounts(
            rows=self.rows + other.rows,
            exact_rows=self.exact_rows + other.exact_rows,
            nbytes=self.nbytes + other.nbytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One worker's view of one step. Losses, norm and expert choices are global and the same on
    every worker; seconds are its own."""

    step: int
    """Number of the step, from 0."""
    loss: float
    """Cross-entropy per valid target, in nats."""
    balance: float
    """Load-balancing loss summed over layers, before its coefficient; 0 where its scope is
    `micro_batch` and its coefficient 0, as its counts are not summed then."""
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
    """Whether a stop was asked for; this step is the last."""
    saving: bool
    """Whether the state after this step is being saved."""
    choices_LE: tuple[tuple[int, ...], ...]
    """Choices that fell on each expert of each layer."""
    seconds: dict[str, float]
    """This worker's time since its last report, by kind; adds up to wall time."""
    traffic: dict[str, Traffic]
    """What left this worker in this step, by channel: payloads, counts, sums."""
    hops: dict[str, HopCounts]
    """By hop: what of this step's rows this worker sent, and what its own routing asked for."""
    peak_memory_bytes: int
    """Largest resident memory of this worker's process so far (device memory on CUDA)."""
    trace: WorkerTrace | None = None
    """What this worker did when, in a traced step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """Loss on held-out data."""

    loss: float
    valid_targets: int
