"""Between the two hops: an expert worker that takes in rows for its whole host.

Rows come from the attention workers that it serves, each once for all experts of the host. It sends
them on to the workers that hold the experts, adds up in rank order what these return, and sends one
row back for each that came. Gradients go the same way.

Letters: D hidden, R rows, P pairs of a row and an expert.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from disagmoe.model.dispatch import Dispatch, join_rows, place_gates, plan_pairs, sum_rows
from disagmoe.runtime.context import Context
from disagmoe.runtime.packing import pack_drows, pack_outputs
from disagmoe.runtime.side import Counts
from disagmoe.runtime.slots import SlotTable
from disagmoe.runtime.wire import Incoming, Message, Outgoing
from disagmoe.schedule.gateways import neighbours, served
from disagmoe.schedule.ir import Compute, Op, Slot, SlotKind, TransferKey
from disagmoe.schedule.layout import Side, Worker


@dataclass(frozen=True, slots=True)
class Routes:
    """Where the rows of a micro-batch came from and went to."""

    rows: tuple[int, ...]
    """Rows of each attention worker; they lie one after the other."""
    pairs: tuple[int, ...]
    tokens: tuple[torch.Tensor | None, ...]
    """Their tokens at each attention worker, where they must go back with the rows."""
    sent: tuple[Dispatch, ...]
    """What went to each expert worker of the host; a token there is a row here, a choice a pair."""


class Gateway:
    """Ops of one worker as the gateway of its host."""

    def __init__(self, context: Context, role: Worker, slots: SlotTable) -> None:
        self._context = context
        self._role = role
        self._slots = slots

    def compute(self, instruction: Compute) -> None:
        """Execute one op of a gateway."""
        assert instruction.layer is not None
        layer, mb = instruction.layer, instruction.mb
        match instruction.op:
            case Op.FAN_OUT:
                self._fan_out(layer, mb)
            case Op.GATHER_ADD:
                self._gather_add(layer, mb)
            case Op.FAN_OUT_BWD:
                self._fan_out_bwd(layer, mb)
            case Op.GATHER_ADD_BWD:
                self._gather_add_bwd(layer, mb)
            case _:
                raise AssertionError(f"{instruction} is not for a gateway")

    def expected(self, key: TransferKey, counts: Counts | None) -> Iterable[tuple[str, Message]]:
        """Peers and messages of an incoming payload; see SideOps."""
        wire, near = self._context.wire, self._context.near_wire
        if counts is not None:
            return [(peer, wire.rows(rows, pairs)) for peer, (rows, pairs) in counts.items()]
        routes = self._slots.wait_for(_slot(SlotKind.ROUTES, key.layer, key.mb), Routes)
        match key.received.kind:
            case SlotKind.DOUTPUTS:
                peers = self._attention(key.layer + 1)
                sizes = zip(peers, routes.rows, strict=True)
                return [(peer, wire.doutputs(rows)) for peer, rows in sizes]
            case SlotKind.PART_OUTPUTS:
                return [(peer, near.outputs(len(to.token_R))) for peer, to in self._to(key, routes)]
            case SlotKind.PART_DROWS:
                return [
                    (peer, near.drows(len(to.token_R), len(to.row_P)))
                    for peer, to in self._to(key, routes)
                ]
            case kind:
                raise AssertionError(f"{kind} does not come to a gateway")

    def _to(self, key: TransferKey, routes: Routes) -> Iterable[tuple[str, Dispatch]]:
        return zip(self._experts(key.layer), routes.sent, strict=True)

    def _attention(self, layer: int) -> list[str]:
        return [str(worker) for worker in served(self._context.layout, layer, self._role)]

    def _experts(self, layer: int) -> list[str]:
        return [str(worker) for worker in neighbours(self._context.layout, layer, self._role)]

    def _fan_out(self, layer: int, mb: int) -> None:
        incoming = self._slots.get(_slot(SlotKind.ROWS, layer, mb), Incoming)
        parts = [incoming.views[peer] for peer in self._attention(layer)]
        rows = tuple(len(part["rows_RD"]) for part in parts)
        pairs = tuple(len(part["gate_P"]) for part in parts)
        joined = _joined(parts or [self._nothing()])
        sizes = self._context.experts_of_neighbours
        sent = plan_pairs(joined.row_P, joined.expert_P, sizes, "rank")
        outgoing = self._pack_rows(layer, joined, sent)
        self._slots.put(_slot(SlotKind.FAN_ROWS, layer, mb), outgoing)
        # copies: the messages are freed before
        tokens = tuple(part["token_R"].clone() if "token_R" in part else None for part in parts)
        routes = Routes(rows, pairs, tokens, sent)
        self._slots.put(_slot(SlotKind.ROUTES, layer, mb), routes)

    def _nothing(self) -> dict[str, torch.Tensor]:
        """What an attention worker without tokens sends; for a gateway that serves none."""
        message = self._context.wire.rows(0, 0)
        return message.views(message.allocate(self._context.device))

    def _pack_rows(self, layer: int, joined: "_Joined", sent: Sequence[Dispatch]) -> Outgoing:
        buffers, counts = {}, {}
        for peer, to in zip(self._experts(layer), sent, strict=True):
            message = self._context.near_wire.rows(len(to.token_R), len(to.row_P))
            buffer = message.allocate(self._context.device)
            views = message.views(buffer)
            torch.index_select(joined.rows_RD, 0, to.token_R, out=views["rows_RD"])
            torch.index_select(joined.gate_P, 0, to.choice_P, out=views["gate_P"])
            views["row_P"].copy_(to.row_P)
            views["expert_P"].copy_(to.expert_P)
            if joined.home_P is not None:
                home_R = to.token_R.new_zeros(len(to.token_R))
                home_R.index_add_(0, to.row_P, joined.home_P.index_select(0, to.choice_P))
                views["home_R"].copy_(home_R)
            buffers[peer], counts[peer] = buffer, (len(to.token_R), len(to.row_P))
        return Outgoing(buffers, counts)

    def _gather_add(self, layer: int, mb: int) -> None:
        routes = self._slots.get(_slot(SlotKind.ROUTES, layer, mb), Routes)
        parts = self._parts(SlotKind.PART_OUTPUTS, layer, mb)
        out_RD = _summed(routes, parts)
        peers = self._attention(layer + 1)
        outgoing = pack_outputs(self._context.wire, peers, out_RD.split(routes.rows), routes.tokens)
        self._slots.put(_slot(SlotKind.OUTPUTS, layer, mb), outgoing)

    def _fan_out_bwd(self, layer: int, mb: int) -> None:
        routes = self._slots.get(_slot(SlotKind.ROUTES, layer, mb), Routes)
        incoming = self._slots.get(_slot(SlotKind.DOUTPUTS, layer, mb), Incoming)
        wire = self._context.near_wire
        parts = [incoming.views[peer] for peer in self._attention(layer + 1)]
        dout_RD = torch.cat([part["rows_RD"] for part in parts or [self._nothing()]])
        buffers, counts = {}, {}
        for peer, to in zip(self._experts(layer), routes.sent, strict=True):
            message = wire.doutputs(len(to.token_R))
            buffers[peer] = message.allocate(self._context.device)
            torch.index_select(dout_RD, 0, to.token_R, out=message.views(buffers[peer])["rows_RD"])
            counts[peer] = (len(to.token_R), 0)
        self._slots.put(_slot(SlotKind.FAN_DOUTPUTS, layer, mb), Outgoing(buffers, counts))

    def _gather_add_bwd(self, layer: int, mb: int) -> None:
        routes = self._slots.get(_slot(SlotKind.ROUTES, layer, mb), Routes)
        parts = self._parts(SlotKind.PART_DROWS, layer, mb)
        drows_RD = _summed(routes, parts)
        gates = [(to.choice_P, part["gate_P"]) for to, part in zip(routes.sent, parts, strict=True)]
        dgate_P = place_gates(sum(routes.pairs), 1, gates).flatten()
        outgoing = pack_drows(
            self._context.wire,
            self._attention(layer),
            drows_RD.split(routes.rows),
            dgate_P.split(routes.pairs),
        )
        self._slots.put(_slot(SlotKind.DROWS, layer, mb), outgoing)

    def _parts(self, kind: SlotKind, layer: int, mb: int) -> list[dict[str, torch.Tensor]]:
        incoming = self._slots.get(_slot(kind, layer, mb), Incoming)
        return [incoming.views[peer] for peer in self._experts(layer)]


@dataclass(frozen=True, slots=True)
class _Joined:
    """The rows of all attention workers that are served, one after the other."""

    rows_RD: torch.Tensor
    row_P: torch.Tensor
    expert_P: torch.Tensor
    """Counted from the first of the host."""
    gate_P: torch.Tensor
    home_P: torch.Tensor | None
    """Whether a pair is the first choice of a token, whose expert worker is its home."""


def _joined(parts: Sequence[dict[str, torch.Tensor]]) -> _Joined:
    def cat(name: str) -> torch.Tensor:
        return torch.cat([part[name] for part in parts])

    rows = [len(part["rows_RD"]) for part in parts]
    row_P = join_rows([part["row_P"].long() for part in parts], rows)
    home_P = None
    if "home_R" in parts[0]:
        # pairs of a row are in the order of the token's choices, so that a row at home on this host
        # begins with the first one
        first_P = torch.ones_like(row_P)
        first_P[1:] = row_P[1:] != row_P[:-1]
        home_P = first_P * cat("home_R").index_select(0, row_P).long()
    return _Joined(cat("rows_RD"), row_P, cat("expert_P").long(), cat("gate_P"), home_P)


def _summed(routes: Routes, parts: Sequence[dict[str, torch.Tensor]]) -> torch.Tensor:
    """What the expert workers of the host have for each row [R, D], added in rank order."""
    added = [(to.token_R, part["rows_RD"]) for to, part in zip(routes.sent, parts, strict=True)]
    return sum_rows(sum(routes.rows), added)


def _slot(kind: SlotKind, layer: int, mb: int) -> Slot:
    return Slot(Side.EXPERT, kind, layer, mb)
