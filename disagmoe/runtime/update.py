"""The end of a step on one worker: sums over replicas, norm, and the update of its shards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from disagmoe.config.train import OptimizerConfig
from disagmoe.model import names
from disagmoe.optim.adamw import Optimizer, ParameterState
from disagmoe.optim.balance import move_balance
from disagmoe.optim.clip import squared_norm
from disagmoe.optim.groups import rule_of_tensor
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
    balances: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Biases that balance experts, where the family has them."""


class Update:
    """Owns the optimizer; its states cover this worker's shards and nothing else."""

    def __init__(self, context: Context, parameters: Parameters, config: OptimizerConfig) -> None:
        self._parameters = parameters
        me, layout = context.worker, context.layout
        self._replicas: dict[str, Replicas] = {}
        for kind in held_kinds(layout, me, shared_with_experts=context.shared_with_experts):
            members = [str(peer) for peer in replicas(kind, me, layout)]
            held = Replicas(parameters.segments[kind], str(me), members)
            self._replicas[replicas_name(kind, me)] = held
        self._is_first = me in (
            replicas(SegmentKind.ATTENTION, me, layout)[:1] if parameters.balances else ()
        )
        rules = {
            tensor.name: rule_of_tensor(tensor, config)
            for held in self._replicas.values()
            for tensor in held.segment.tensors
        }
        pieces = [piece for held in self._replicas.values() for piece in held.pieces]
        values = [held.value_pieces() for held in self._replicas.values()]
        self.optimizer = Optimizer(
            {key: value for part in values for key, value in part.items()},
            config,
            {piece.key: rules[piece.name] for piece in pieces},
        )
        self._grads: dict[str, torch.Tensor] = {}

    @property
    def held(self) -> tuple[Replicas, ...]:
        """This worker's part of each segment that it holds."""
        return tuple(self._replicas.values())

    @property
    def own_balances(self) -> dict[str, torch.Tensor]:
        """Balance biases that this worker answers for: each that it has, if it is the first of the
        workers that have it."""
        return self._parameters.balances if self._is_first else {}

    @property
    def others_balances(self) -> dict[str, torch.Tensor]:
        """Those that another worker answers for."""
        return {} if self._is_first else self._parameters.balances

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

    def move_balances(self, choices_LE: Sequence[Sequence[int]], rate: float) -> None:
        """Move the biases of this worker's routers by the step's choices of all workers."""
        for name, bias_E in self._parameters.balances.items():
            move_balance(bias_E, choices_LE[names.layer_of(name)], rate)

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
        for name, bias_E in self._parameters.balances.items():
            bias_E.copy_(state.balances[name])


def _flatten(segment: Segment, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
    parts = [local.join(parameters).flatten() for local in segment.tensors]
    return torch.cat(parts) if parts else torch.empty(0)
