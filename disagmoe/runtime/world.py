"""What the world reduction carries: one vector of sums, from which every worker reads the same."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from disagmoe.runtime.counters import StepCounters
from disagmoe.runtime.parameters import SegmentKind

_NORMS = tuple(f"norm_squared_{kind}" for kind in SegmentKind)
_SCALARS = (*_NORMS, "overflow", "stop", "save", "tokens", "valid_targets", "loss", "balance", "z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one worker adds to the sums."""

    counters: StepCounters
    norm_squared: Mapping[SegmentKind, float] = field(default_factory=dict)
    """Of the gradients that this worker answers for. Segments are summed apart, so that the bits
    are the same whether one worker or two hold attention and experts."""
    nonfinite: bool = False
    """Whether this worker's own gradients, before any sum over replicas, are not finite."""
    stop: bool = False
    save: bool = False
    """Whether this worker asks for a save after the step."""
    tokens: int = 0
    valid_targets: int = 0

    def encode(self, rank: int, workers: int) -> torch.Tensor:
        """Return the fp64 vector of the worker with world rank `rank`."""
        flags = torch.zeros(workers, dtype=torch.float64)
        flags[rank] = float(self.nonfinite)
        counters = self.counters
        norms = [self.norm_squared.get(kind, 0.0) for kind in SegmentKind]
        overflow = not all(math.isfinite(norm) for norm in norms)
        scalars = [
            *(norm if math.isfinite(norm) else 0.0 for norm in norms),
            float(overflow),
            float(self.stop),
            float(self.save),
            float(self.tokens),
            float(self.valid_targets),
            *counters.sums(),
        ]
        head = torch.tensor(scalars, dtype=torch.float64)
        return torch.cat([head, flags, counters.choices_LE.flatten().cpu()])


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Sums over all workers."""

    norm_squared: float
    """Without what is not finite."""
    overflow: bool
    """Whether a sum of gradients is not finite, be its terms finite or not."""
    stop: bool
    save: bool
    tokens: int
    valid_targets: int
    loss: float
    balance: float
    z: float
    nonfinite: tuple[str, ...]
    """Workers whose gradients are not finite."""
    choices_LE: tuple[tuple[int, ...], ...]

    @classmethod
    def decode(cls, total: torch.Tensor, workers: Sequence[str], experts: int) -> "World":
        """Read the sum of all workers' vectors."""
        scalars = dict(zip(_SCALARS, total[: len(_SCALARS)].tolist(), strict=True))
        flags = total[len(_SCALARS) : len(_SCALARS) + len(workers)].tolist()
        choices = total[len(_SCALARS) + len(workers) :].view(-1, experts).long().tolist()
        return cls(
            norm_squared=sum(scalars[name] for name in _NORMS),
            overflow=scalars["overflow"] > 0,
            stop=scalars["stop"] > 0,
            save=scalars["save"] > 0,
            tokens=int(scalars["tokens"]),
            valid_targets=int(scalars["valid_targets"]),
            loss=scalars["loss"],
            balance=scalars["balance"],
            z=scalars["z"],
            nonfinite=tuple(name for name, flag in zip(workers, flags, strict=True) if flag),
            choices_LE=tuple(tuple(row) for row in choices),
        )

    def reason_to_skip(self) -> str:
        """Why no worker may update its parameters, or an empty string."""
        if self.nonfinite:
            return f"gradients of {', '.join(self.nonfinite)} are not finite"
        if self.overflow:
            return "sums of finite gradients are not finite"
        if not math.isfinite(self.loss):
            return f"the loss is {self.loss}"
        if self.valid_targets == 0:
            return "no valid target in the whole batch"
        return ""
