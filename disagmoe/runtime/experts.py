"""Expert side: grouped experts on the rows of all attention workers, forward and backward.

Letters: D hidden, R rows, P pairs of a row and an expert.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from disagmoe.model import names
from disagmoe.model.dispatch import join_rows
from disagmoe.model.experts import Product, experts_products
from disagmoe.model.norm import rms_norm
from disagmoe.model.params import ExpertParams
from disagmoe.model.partition import down_name, gate_up_name
from disagmoe.model.precision import wide
from disagmoe.model.weight_grads import Pending, input_grads, weight_grads
from disagmoe.runtime.context import Context
from disagmoe.runtime.parameters import Parameters
from disagmoe.runtime.side import Counts
from disagmoe.runtime.slots import SlotTable
from disagmoe.runtime.wire import Incoming, Message, Outgoing
from disagmoe.schedule.ir import Compute, Op, Slot, SlotKind, TransferKey
from disagmoe.schedule.layout import Side, Worker


@dataclass(frozen=True, slots=True)
class Saved:
    """What the backward of one layer's experts needs; rows of all sources, one after the other."""

    rows_RD: torch.Tensor
    gate_P: torch.Tensor
    out_RD: torch.Tensor
    rows: tuple[int, ...]
    """Rows of each source."""
    pairs: tuple[int, ...]
    products: tuple[Product, ...]
    """Products with weights; empty unless the backward comes in two parts."""


@dataclass(frozen=True, slots=True)
class Later:
    """What the first part of a split backward leaves to the second."""

    pending: tuple[Pending, ...]
    dnorm: tuple[torch.Tensor, ...]
    """Gradient of the norm that is shared with the attention, if there is one."""


class ExpertSide:
    """Compute ops of one worker in its expert role."""

    def __init__(
        self, context: Context, role: Worker, parameters: Parameters, slots: SlotTable
    ) -> None:
        self._context = context
        self._role = role
        self._parameters = parameters
        self._slots = slots
        self._training = True

    def begin(self, *, training: bool) -> None:
        """Start a step or an evaluation."""
        self._training = training

    def compute(self, instruction: Compute) -> None:
        """Execute one compute op."""
        assert instruction.layer is not None
        match instruction.op:
            case Op.EXPERTS_FWD:
                self._forward(instruction.layer, instruction.mb)
            case Op.EXPERTS_BWD:
                self._backward(instruction.layer, instruction.mb)
            case Op.EXPERTS_DGRAD:
                self._input_backward(instruction.layer, instruction.mb)
            case Op.EXPERTS_WGRAD:
                self._weight_backward(instruction.layer, instruction.mb)
            case _:
                raise AssertionError(f"{instruction} is not for an expert worker")

    def expected(self, key: TransferKey, counts: Counts | None) -> Iterable[tuple[str, Message]]:
        """Peers and messages of an incoming payload."""
        wire = self._context.wire
        if key.received.kind is SlotKind.ROWS and counts is not None:
            return [(peer, wire.rows(rows, pairs)) for peer, (rows, pairs) in counts.items()]
        if key.received.kind is SlotKind.DOUTPUTS:
            saved = self._slots.wait_for(_slot(SlotKind.SAVED, key.layer, key.mb), Saved)
            peers = self._attention(key.layer + 1)
            return [
                (peer, wire.doutputs(rows)) for peer, rows in zip(peers, saved.rows, strict=True)
            ]
        raise AssertionError(f"{key.received.kind} does not come to an expert worker")

    def _attention(self, layer: int) -> list[str]:
        layout = self._context.layout
        return [str(worker) for worker in layout.members(layout.attention(layer), self._role.ring)]

    def _forward(self, layer: int, mb: int) -> None:
        incoming = self._slots.get(_slot(SlotKind.ROWS, layer, mb), Incoming)
        parts = [incoming.views[peer] for peer in self._attention(layer)]
        rows = tuple(len(part["rows_RD"]) for part in parts)
        pairs = tuple(len(part["gate_P"]) for part in parts)
        row_P = join_rows([part["row_P"].long() for part in parts], rows)
        expert_P = _join([part["expert_P"] for part in parts]).long()
        params = ExpertParams.read(self._parameters.values, layer)
        with torch.set_grad_enabled(self._training):
            rows_RD = _join([part["rows_RD"] for part in parts]).requires_grad_(self._training)
            gate_P = _join([part["gate_P"] for part in parts]).requires_grad_(self._training)
            n_RD = self._normalised(layer, rows_RD)
            out_RD, products = experts_products(params, n_RD, row_P, expert_P, gate_P)
            if self._context.layout.fused_residual:
                out_RD = _add_home(out_RD, rows_RD, _join([part["home_R"] for part in parts]))
        tokens = [part.get("token_R") for part in parts]
        outgoing = self._pack_outputs(layer, out_RD.detach(), rows, tokens)
        self._slots.put(_slot(SlotKind.OUTPUTS, layer, mb), outgoing)
        if self._training:
            kept = products if self._context.config.parallel.split_backward else ()
            saved = Saved(rows_RD, gate_P, out_RD, rows, pairs, kept)
            self._slots.put(_slot(SlotKind.SAVED, layer, mb), saved)

    def _normalised(self, layer: int, rows_RD: torch.Tensor) -> torch.Tensor:
        """What the experts take: the rows, or with a fused residual their norm."""
        norm = self._norm(layer)
        eps = self._context.config.model.norm_eps
        return rms_norm(rows_RD, norm[0], eps) if norm else rows_RD

    def _pack_outputs(
        self,
        layer: int,
        out_RD: torch.Tensor,
        rows: tuple[int, ...],
        tokens: list[torch.Tensor | None],
    ) -> Outgoing:
        buffers, counts = {}, {}
        peers = self._attention(layer + 1)
        for peer, part_RD, token_R in zip(peers, out_RD.split(rows), tokens, strict=True):
            counts[peer] = (len(part_RD), 0)
            if token_R is None:
                buffers[peer] = part_RD.view(torch.uint8).flatten()
                continue
            message = self._context.wire.outputs(len(part_RD))
            buffers[peer] = message.allocate(self._context.device)
            views = message.views(buffers[peer])
            views["rows_RD"].copy_(part_RD)
            views["token_R"].copy_(token_R)
        return Outgoing(buffers, counts)

    def _backward(self, layer: int, mb: int) -> None:
        saved, dout_RD = self._saved(layer, mb), self._dout(layer, mb)
        own = [self._parameters.values[name] for name in _own(layer)]
        inputs = [saved.rows_RD, saved.gate_P, *own, *self._norm(layer)]
        drows_RD, dgate_P, *dparams = torch.autograd.grad(saved.out_RD, inputs, dout_RD)
        self._accumulate(layer, dparams[: len(own)], dparams[len(own) :])
        self._pack_drows(layer, mb, saved, drows_RD, dgate_P)

    def _input_backward(self, layer: int, mb: int) -> None:
        saved, dout_RD = self._saved(layer, mb), self._dout(layer, mb)
        inputs = [saved.rows_RD, saved.gate_P, *self._norm(layer)]
        grads, pending = input_grads(saved.out_RD, inputs, saved.products, dout_RD)
        drows_RD, dgate_P, *dnorm = grads
        self._slots.put(_slot(SlotKind.DSAVED, layer, mb), Later(pending, tuple(dnorm)))
        self._pack_drows(layer, mb, saved, drows_RD, dgate_P)

    def _weight_backward(self, layer: int, mb: int) -> None:
        later = self._slots.get(_slot(SlotKind.DSAVED, layer, mb), Later)
        self._accumulate(layer, weight_grads(later.pending), later.dnorm)

    def _saved(self, layer: int, mb: int) -> Saved:
        return self._slots.get(_slot(SlotKind.SAVED, layer, mb), Saved)

    def _dout(self, layer: int, mb: int) -> torch.Tensor:
        incoming = self._slots.get(_slot(SlotKind.DOUTPUTS, layer, mb), Incoming)
        return _join([incoming.views[peer]["rows_RD"] for peer in self._attention(layer + 1)])

    def _norm(self, layer: int) -> list[torch.Tensor]:
        """The norm that this side shares with the attention, if it does."""
        if not self._context.layout.fused_residual:
            return []
        return [self._parameters.values[_norm_name(layer)]]

    def _accumulate(
        self, layer: int, dparams: Sequence[torch.Tensor], dnorm: Sequence[torch.Tensor]
    ) -> None:
        self._parameters.accumulate(_own(layer), dparams)
        for dnorm_D in dnorm:
            self._parameters.second_grad(_norm_name(layer)).add_(dnorm_D)

    def _pack_drows(
        self, layer: int, mb: int, saved: Saved, drows_RD: torch.Tensor, dgate_P: torch.Tensor
    ) -> None:
        buffers, counts = {}, {}
        parts = zip(
            self._attention(layer),
            drows_RD.split(saved.rows),
            dgate_P.split(saved.pairs),
            strict=True,
        )
        for peer, rows_RD, gate_P in parts:
            message = self._context.wire.drows(len(rows_RD), len(gate_P))
            buffers[peer] = message.allocate(self._context.device)
            views = message.views(buffers[peer])
            views["rows_RD"].copy_(rows_RD)
            views["gate_P"].copy_(gate_P)
            counts[peer] = (len(rows_RD), len(gate_P))
        self._slots.put(_slot(SlotKind.DROWS, layer, mb), Outgoing(buffers, counts))


def _add_home(out_RD: torch.Tensor, rows_RD: torch.Tensor, home_R: torch.Tensor) -> torch.Tensor:
    """Add the residual to the outputs of the rows at home here; summed in the exact type."""
    exact = wide(out_RD.dtype)
    kept_RD = rows_RD.to(exact) * home_R.to(exact)[:, None]
    return (out_RD.to(exact) + kept_RD).to(out_RD.dtype)


def _own(layer: int) -> tuple[str, str]:
    """The stacks of a layer."""
    return gate_up_name(layer), down_name(layer)


def _norm_name(layer: int) -> str:
    return names.attention_name(layer, "moe_norm")


def _slot(kind: SlotKind, layer: int, mb: int) -> Slot:
    return Slot(Side.EXPERT, kind, layer, mb)


def _join(parts: list[torch.Tensor]) -> torch.Tensor:
    """Concatenate; a single part is a view of its message and costs no copy."""
    return parts[0].detach() if len(parts) == 1 else torch.cat(parts)
