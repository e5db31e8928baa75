"""Expert side: grouped experts on the rows of all attention workers, forward and backward.

Letters: D hidden, R rows, P pairs of a row and an expert, H rows at home on this worker.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from disagmoe.model import names
from disagmoe.model.block import swiglu_block
from disagmoe.model.device import to_host
from disagmoe.model.dispatch import join_rows
from disagmoe.model.experts import (
    Kept,
    Pending,
    add_weight_grads,
    experts_apply,
    input_grads,
    recomputed,
    without_activations,
)
from disagmoe.model.norm import rms_norm
from disagmoe.model.params import ExpertParams, SwigluParams
from disagmoe.model.partition import stack_names
from disagmoe.model.precision import wide
from disagmoe.runtime.context import Context
from disagmoe.runtime.gateway import Gateway
from disagmoe.runtime.packing import pack_drows, pack_outputs
from disagmoe.runtime.parameters import Parameters
from disagmoe.runtime.side import Counts
from disagmoe.runtime.slots import SlotTable
from disagmoe.runtime.wire import Incoming, Message
from disagmoe.schedule.gateways import neighbours, served
from disagmoe.schedule.ir import (
    GATEWAY_OPS,
    Compute,
    Op,
    Slot,
    SlotKind,
    TransferKey,
    expert_kinds,
)
from disagmoe.schedule.layout import Side, Worker


@dataclass(frozen=True, slots=True)
class Saved:
    """What the backward of one layer's experts needs; rows of all sources, one after the other."""

    kept: Kept
    rows: tuple[int, ...]
    """Rows of each source."""
    pairs: tuple[int, ...]
    fused: "Fused | None"
    """With a fused residual, what was done to the rows before and after the experts."""
    shared: "Shared | None"
    """With shared experts on this side, what they did for the rows at home here."""


@dataclass(frozen=True, slots=True)
class Fused:
    """A fused residual: rows arrive un-normalised, and those at home here are added to outputs."""

    rows_RD: torch.Tensor
    n_RD: torch.Tensor | None
    """Their norm, with graph; None while it is to be computed again."""
    home_R: torch.Tensor


@dataclass(frozen=True, slots=True)
class Shared:
    """Shared experts: `out_HD` with the graph from `n_HD`, of the H rows at home here."""

    row_H: torch.Tensor
    n_HD: torch.Tensor
    out_HD: torch.Tensor


@dataclass(frozen=True, slots=True)
class Later:
    """What the first part of a split backward leaves to the second."""

    pending: Pending
    dnorm_D: torch.Tensor | None
    """Gradient of the norm that is shared with the attention, if there is one."""
    dshared: tuple[torch.Tensor, ...]
    """Gradients of the shared experts' parameters, if they are on this side."""


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
        self._recomputes = context.recomputes(Side.EXPERT)
        self._kinds = expert_kinds(context.layout)
        self._gateway = Gateway(context, role, slots) if context.layout.two_hop else None

    def begin(self, *, training: bool) -> None:
        """Start a step or an evaluation."""
        self._training = training

    def compute(self, instruction: Compute) -> None:
        """Execute one compute op."""
        assert instruction.layer is not None
        if self._gateway is not None and instruction.op in GATEWAY_OPS:
            self._gateway.compute(instruction)
            return
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
        wire, kind = self._context.near_wire, key.received.kind
        if kind is self._kinds.rows and counts is not None:
            return [(peer, wire.rows(rows, pairs)) for peer, (rows, pairs) in counts.items()]
        if kind is self._kinds.doutputs:
            saved = self._slots.wait_for(_slot(SlotKind.SAVED, key.layer, key.mb), Saved)
            peers = self._targets(key.layer)
            return [
                (peer, wire.doutputs(rows)) for peer, rows in zip(peers, saved.rows, strict=True)
            ]
        if self._gateway is not None:
            return self._gateway.expected(key, counts)
        raise AssertionError(f"{kind} does not come to an expert worker")

    def _sources(self, layer: int) -> list[str]:
        """Whom rows of `layer` come from: attention workers, or the gateways of this host."""
        layout = self._context.layout
        if layout.two_hop:
            return [str(worker) for worker in neighbours(layout, layer, self._role)]
        return [str(worker) for worker in served(layout, layer, self._role)]

    def _targets(self, layer: int) -> list[str]:
        """Whom outputs of `layer` go to: the next attention workers, or those gateways."""
        layout = self._context.layout
        if layout.two_hop:
            return self._sources(layer)
        return [str(worker) for worker in served(layout, layer + 1, self._role)]

    def _forward(self, layer: int, mb: int) -> None:
        incoming = self._slots.get(_slot(self._kinds.rows, layer, mb), Incoming)
        parts = [incoming.views[peer] for peer in self._sources(layer)]
        rows = tuple(len(part["rows_RD"]) for part in parts)
        pairs = tuple(len(part["gate_P"]) for part in parts)
        row_P = join_rows([part["row_P"].long() for part in parts], rows)
        expert_P = _join([part["expert_P"] for part in parts]).long()
        rows_RD = _join([part["rows_RD"] for part in parts])
        # a copy, so that nothing kept for the backward holds the messages
        gate_P = torch.cat([part["gate_P"] for part in parts])
        home = [part["home_R"] for part in parts if "home_R" in part]
        home_R = _join(home) if home else None
        if incoming.reused and home_R is not None and len(parts) == 1:
            # homes are kept for the backward, and the message is written to again
            rows_RD, home_R = rows_RD.clone(), home_R.clone()
        fused = self._fused(layer, rows_RD, home_R)
        n_RD = rows_RD if fused is None or fused.n_RD is None else fused.n_RD.detach()
        out_RD, kept = experts_apply(self._params(layer), n_RD, row_P, expert_P, gate_P)
        shared = self._shared(layer, n_RD, home_R)
        if shared is not None:
            out_RD = _add_rows(out_RD, shared.row_H, shared.out_HD.detach())
        if fused is not None:
            out_RD = _add_home(out_RD, rows_RD, fused.home_R)
        tokens = [part.get("token_R") for part in parts]
        wire, targets = self._context.near_wire, self._targets(layer)
        outgoing = pack_outputs(wire, targets, out_RD.split(rows), tokens)
        self._slots.put(_slot(self._kinds.outputs, layer, mb), outgoing)
        if self._training:
            if self._recomputes and fused is not None:
                kept = without_activations(kept, rows_RD)
                fused = replace(fused, rows_RD=rows_RD, n_RD=None)
            elif self._recomputes:
                kept = without_activations(kept, n_RD)
            saved = Saved(kept, rows, pairs, fused, shared)
            self._slots.put(_slot(SlotKind.SAVED, layer, mb), saved)

    def _params(self, layer: int) -> ExpertParams:
        model, number = self._context.config.model, self._context.model_layer(layer)
        return ExpertParams.read(self._parameters.values, model, number)

    def _norm_name(self, layer: int) -> str:
        return names.attention_name(self._context.model_layer(layer), "moe_norm")

    def _shared_names(self, layer: int) -> list[str]:
        model = self._context.config.model
        return list(names.shared_shapes(model, self._context.model_layer(layer)))

    def _shared(self, layer: int, n_RD: torch.Tensor, home_R: torch.Tensor | None) -> Shared | None:
        """Let the shared experts work on the rows that are at home here."""
        if not self._context.shared_with_experts:
            return None
        assert home_R is not None, "the wire has homes"
        # to ask how many there are stops the host no longer than nonzero() itself would
        (homes,) = to_host(home_R.sum(dtype=torch.int64)[None])
        row_H = torch.nonzero_static(home_R, size=homes).flatten()
        model, number = self._context.config.model, self._context.model_layer(layer)
        params = SwigluParams.read(self._parameters.values, model, number, "shared")
        with torch.set_grad_enabled(self._training):
            n_HD = n_RD.index_select(0, row_H).requires_grad_(self._training)
            return Shared(row_H, n_HD, swiglu_block(params, n_HD))

    def _fused(
        self, layer: int, rows_RD: torch.Tensor, home_R: torch.Tensor | None
    ) -> Fused | None:
        """Normalise rows that have come with the residual in them."""
        if not self._context.layout.fused_residual:
            return None
        assert home_R is not None, "the wire has homes"
        with torch.set_grad_enabled(self._training):
            rows_RD = rows_RD.detach().requires_grad_(self._training)
            norm_D = self._parameters.values[self._norm_name(layer)]
            n_RD = rms_norm(rows_RD, norm_D, self._context.config.model.norm_eps)
        return Fused(rows_RD, n_RD, home_R)

    def _backward(self, layer: int, mb: int) -> None:
        self._add_weight_grads(layer, self._input_grads(layer, mb))

    def _input_backward(self, layer: int, mb: int) -> None:
        self._slots.put(_slot(SlotKind.DSAVED, layer, mb), self._input_grads(layer, mb))

    def _weight_backward(self, layer: int, mb: int) -> None:
        later = self._slots.get(_slot(SlotKind.DSAVED, layer, mb), Later)
        self._add_weight_grads(layer, later)

    def _input_grads(self, layer: int, mb: int) -> Later:
        """Send the gradients of rows and gates, and return what is left to do."""
        saved = self._slots.get(_slot(SlotKind.SAVED, layer, mb), Saved)
        incoming = self._slots.get(_slot(self._kinds.doutputs, layer, mb), Incoming)
        dout_RD = _join([incoming.views[peer]["rows_RD"] for peer in self._targets(layer)])
        params, kept, fused = self._params(layer), saved.kept, saved.fused
        if self._recomputes and fused is not None:
            fused = self._fused(layer, fused.rows_RD, fused.home_R)
            assert fused is not None
            assert fused.n_RD is not None
            kept = without_activations(kept, fused.n_RD.detach())
        if self._recomputes:
            kept = recomputed(params, kept)
        drows_RD, dgate_P, pending = input_grads(params, kept, dout_RD)
        dshared: tuple[torch.Tensor, ...] = ()
        if saved.shared is not None:
            drows_RD, dshared = self._shared_grads(layer, saved.shared, drows_RD, dout_RD)
        dnorm_D = None
        if fused is not None:
            assert fused.n_RD is not None
            norm_D = self._parameters.values[self._norm_name(layer)]
            drows_RD, dnorm_D = torch.autograd.grad(fused.n_RD, [fused.rows_RD, norm_D], drows_RD)
            drows_RD = _add_home(drows_RD, dout_RD, fused.home_R)
        wire, sources = self._context.near_wire, self._sources(layer)
        outgoing = pack_drows(wire, sources, drows_RD.split(saved.rows), dgate_P.split(saved.pairs))
        self._slots.put(_slot(self._kinds.drows, layer, mb), outgoing)
        return Later(pending, dnorm_D, dshared)

    def _shared_grads(
        self, layer: int, shared: Shared, drows_RD: torch.Tensor, dout_RD: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Return the gradient of the rows with that through shared experts, and theirs."""
        own = [self._parameters.values[name] for name in self._shared_names(layer)]
        dout_HD = dout_RD.index_select(0, shared.row_H)
        dn_HD, *dshared = torch.autograd.grad(shared.out_HD, [shared.n_HD, *own], dout_HD)
        return _add_rows(drows_RD, shared.row_H, dn_HD), tuple(dshared)

    def _add_weight_grads(self, layer: int, later: Later) -> None:
        model, number = self._context.config.model, self._context.model_layer(layer)
        sums = [self._parameters.grads[name] for name in stack_names(model, number)]
        add_weight_grads(later.pending, *sums)
        if later.dshared:
            self._parameters.accumulate(self._shared_names(layer), later.dshared)
        if later.dnorm_D is not None:
            self._parameters.second_grad(self._norm_name(layer)).add_(later.dnorm_D)


def _add_home(out_RD: torch.Tensor, rows_RD: torch.Tensor, home_R: torch.Tensor) -> torch.Tensor:
    """Add the rows at home here to `out_RD`, in the exact type; the same in both directions."""
    exact = wide(out_RD.dtype)
    kept_RD = rows_RD.to(exact) * home_R.to(exact)[:, None]
    return (out_RD.to(exact) + kept_RD).to(out_RD.dtype)


def _add_rows(out_RD: torch.Tensor, row_H: torch.Tensor, added_HD: torch.Tensor) -> torch.Tensor:
    """Return `out_RD` with `added_HD` added to some of its rows, each once, in the exact type."""
    exact = wide(out_RD.dtype)
    return out_RD.to(exact).index_add(0, row_H, added_HD.to(exact)).to(out_RD.dtype)


def _slot(kind: SlotKind, layer: int, mb: int) -> Slot:
    return Slot(Side.EXPERT, kind, layer, mb)


def _join(parts: list[torch.Tensor]) -> torch.Tensor:
    """Concatenate; a single part is a view of its message and costs no copy."""
    return parts[0].detach() if len(parts) == 1 else torch.cat(parts)
