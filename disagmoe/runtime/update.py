"""The end of a step on one worker: sums over replicas, norm, and the update of its shards."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from disagmoe.config.train import OptimizerConfig
from disagmoe.optim.adamw import Optimizer, ParameterState
from disagmoe.optim.clip import squared_norm
from disagmoe.runtime.channels import held_kinds, replicas, replicas_name
from disagmoe.runtime.context import Context
from disagmoe.runtime.parameters import Parameters, Segment, SegmentKind
from disagmoe.runtime.replicas import Replicas
from disagmoe.transport.base import TransportChannel


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Parameters and moments by global name, in the exact type, and how many steps made them."""

    values: Mapping[str, torch.Tensor]
    exp_avg: Mapping[str, torch.Tensor]
    exp_avg_sq: Mapping[str, torch.Tensor]
    steps: int


class Update:
    """Owns the optimizer; its states cover this worker's shards and nothing else."""

    def __init__(self, context: Context, parameters: Parameters, config: OptimizerConfig) -> None:
        self._parameters = parameters
        me, layout = context.worker, context.layout
        self._replicas: dict[str, Replicas] = {}
        for kind in held_kinds(layout, me):
            members = [str(peer) for peer in replicas(kind, me, layout)]
            held = Replicas(parameters.segments[kind], str(me), members)
            self._replicas[replicas_name(kind, me)] = held
        pieces = [piece for held in self._replicas.values() for piece in held.pieces]
        values = [held.value_pieces() for held in self._replicas.values()]
        self.optimizer = Optimizer(
            {key: value for part in values for key, value in part.items()},
            config,
            {piece.key: piece.decays for piece in pieces},
        )
        self._grads: dict[str, torch.Tensor] = {}

    @property
    def held(self) -> tuple[Replicas, ...]:
        """This worker's part of each segment that it holds."""
        return tuple(self._replicas.values())

    def connect(self, channels: Mapping[str, TransportChannel]) -> None:
        """Take the channels among replicas."""
        for name, held in self._replicas.items():
            held.connect(channels.get(name))

    def reduce(self) -> None:
        """Sum all gradients over their replicas. All replicas call it together."""
        self._grads = {}
        for held in self._replicas.values():
            self._grads |= held.reduce()

    def norm_squared(self) -> dict[SegmentKind, float]:
        """Sums of squares of the summed gradients in this worker's shards. Every parameter is in
        one shard of one worker, so that replicas count once."""
        return {
            held.segment.kind: squared_norm({p.key: self._grads[p.key] for p in held.pieces})
            for held in self._replicas.values()
        }

    def summed_grads(self) -> dict[str, torch.Tensor]:
        """Return all summed gradients by global name. All replicas call it together."""
        out: dict[str, torch.Tensor] = {}
        for held in self._replicas.values():
            pieces = {piece.key: self._grads[piece.key] for piece in held.pieces}
            by_local = held.gathered(pieces)
            for local in held.segment.tensors:
                out.update(local.split(by_local[local.name]))
        return out

    def apply(self, lr: float, scale: float) -> None:
        """Update the values of this worker's shards."""
        self.optimizer.step(self._grads, lr, scale)

    def gather(self) -> None:
        """Give all replicas the values of all shards. All replicas call it together."""
        for held in self._replicas.values():
            held.gather_values()

    def zero_grad(self) -> None:
        """Forget all sums, those of the shards too."""
        self._parameters.zero_grad()
        self._grads = {}

    def load(self, state: TrainingState) -> None:
        """Take over `state`, which holds at least what this worker holds."""
        states: dict[str, ParameterState] = {}
        for held in self._replicas.values():
            segment = held.segment
            flat = [
                _flatten(segment, part) for part in (state.values, state.exp_avg, state.exp_avg_sq)
            ]
            segment.flat_value.detach().copy_(flat[0])
            for piece in held.pieces:
                own = [part[piece.start : piece.stop] for part in flat]
                states[piece.key] = ParameterState(*own)
        self.optimizer.load(states, state.steps)


def _flatten(segment: Segment, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
    parts = [local.join(parameters).flatten() for local in segment.tensors]
    return torch.cat(parts) if parts else torch.empty(0)
