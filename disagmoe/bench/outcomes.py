"""What became of the faults of a drill, and whether that is good. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from disagmoe.actors.injector import Injection

DETECT_WITHIN_S = 30.0

Files = Mapping[int, Mapping[str, Sequence[str]]]
"""Checksums of the files of each checkpoint, by steps and name; all of a worker's state is in one:
weights, masters, moments, and states of random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one fault."""

    fault: Injection
    detect_s: float | None
    """From the fault to when it was known; None for one that was missed."""
    resume_s: float | None
    """From then until all workers are connected again."""
    steps_lost: int
    recovered: bool
    message: str
    """What the run said of it."""
    checkpoint: int | None
    """Steps in the first checkpoint after it; None for one that was missed."""
    state_equal: bool = False
    """Whether that checkpoint has the bits of one of the undisturbed run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """What became of all."""

    seed: int
    outcomes: tuple[Outcome, ...]
    truthful_errors: int
    """Faults that ended a run, as they should, with an error that names them."""
    leaks: tuple[str, ...]
    """Processes that outlived their epoch; placement groups and actors that outlived their run."""
    bit_equal: bool
    """Whether all files of all checkpoints, and losses and norms of all steps, are those of a run
    without the faults that were recovered from."""
    elapsed_s: float

    @property
    def hangs(self) -> int:
        """Faults that were not noticed in time."""
        return sum(one.detect_s is None or one.detect_s > DETECT_WITHIN_S for one in self.outcomes)

    @property
    def recovered(self) -> int:
        """Faults that were overcome, by a run that said what they were."""
        return sum(one.recovered for one in self.outcomes)

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        overcome = self.recovered == len(self.outcomes) and not self.hangs
        return overcome and not self.leaks and self.bit_equal and self.truthful_errors == 1

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "faults": len(self.outcomes) + 1,
            "recovered": self.recovered,
            "truthful_errors": self.truthful_errors,
            "hangs": self.hangs,
            "leaks": len(self.leaks),
            "bit_equal": self.bit_equal,
            "seed": self.seed,
            "elapsed_s": self.elapsed_s,
            "rows": [asdict(one) for one in self.outcomes],
            "leaked": list(self.leaks),
        }


def is_blamed(fault: Injection, message: str) -> bool:
    """Whether the `message` of a restart tells of `fault`; NaN is no reason for one."""
    if fault.kind in ("exception", "memory", "full disk"):
        words = {
            "exception": f"drill: fault {fault.number}",
            "memory": "out of memory",
            "full disk": "cannot write its",
        }
        return message.startswith(fault.worker) and words[fault.kind] in message
    blamed = {"driver": "the driver has died", "kill": f"{fault.worker} died"}
    blamed["freeze"] = f"{fault.worker} has answered nothing"
    return fault.kind in blamed and message.startswith(blamed[fault.kind])


def missed(fault: Injection) -> Outcome:
    """What became of a fault that nobody has noticed."""
    return Outcome(
        fault=fault,
        detect_s=None,
        resume_s=None,
        steps_lost=0,
        recovered=False,
        message="not noticed",
        checkpoint=None,
    )


def judged(outcome: Outcome, undisturbed: Files, disturbed: Files) -> Outcome:
    """Return `outcome` with whether the state after it is that of the undisturbed run."""
    step = outcome.checkpoint
    if step is None or step not in undisturbed:
        return outcome
    return replace(outcome, state_equal=undisturbed[step] == disturbed.get(step))


HEADER = (
    "  # fault      worker phase      step  detected  resumed  lost  state  what the run said of it"
)


def line_of(outcome: Outcome) -> str:
    """One row of the table under HEADER."""
    fault = outcome.fault
    times = [
        "-" if seconds is None else f"{seconds:.1f} s"
        for seconds in (outcome.detect_s, outcome.resume_s)
    ]
    state = "equal" if outcome.state_equal else "other"
    return (
        f"{fault.number + 1:>3} {fault.kind:<10} {fault.worker:<6} {fault.phase:<10} "
        f"{fault.step:>4}  {times[0]:>8}  {times[1]:>7}  {outcome.steps_lost:>4}  {state}  "
        f"{outcome.message[:60]}"
    )
