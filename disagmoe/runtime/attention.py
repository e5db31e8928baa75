"""Attention side: embedding, attention halves, head, and both ends of what they exchange.

Letters: B sequences, S positions, T = B * S tokens, D hidden, K top-k, E experts, R rows, P pairs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from disagmoe.model import names
from disagmoe.model.block import AttentionOut, embed, head_loss
from disagmoe.model.device import count_values
from disagmoe.model.dispatch import (
    Dedupe,
    Dispatch,
    combine,
    count_distinct,
    place_gates,
    plan_dispatch,
    sum_rows,
)
from disagmoe.model.losses import (
    StepTotals,
    global_balance_loss,
    micro_batch_balance_loss,
    sequence_balance_loss,
    z_loss,
)
from disagmoe.model.params import HeadParams
from disagmoe.model.router import Routing
from disagmoe.runtime.channels import choices_spec
from disagmoe.runtime.context import Context
from disagmoe.runtime.counters import StepCounters
from disagmoe.runtime.halves import Halves, Part
from disagmoe.runtime.parameters import Parameters
from disagmoe.runtime.recording import Recording
from disagmoe.runtime.side import Counts
from disagmoe.runtime.slots import SlotTable
from disagmoe.runtime.wire import Incoming, Message, Outgoing
from disagmoe.schedule.gateways import gateways
from disagmoe.schedule.ir import Compute, Op, Slot, SlotKind, TransferKey
from disagmoe.schedule.layout import Side, Worker
from disagmoe.transport.base import TransportChannel
from disagmoe.transport.collective import sum_in_rank_order


@dataclass(frozen=True, slots=True)
class Hidden:
    """What enters the first layer with experts. It stays with the micro-batch through all slots up
    to the embedding's backward, because that goes back through dense layers."""

    h_TD: torch.Tensor
    before_TD: torch.Tensor | None = None
    """Input of the dense layers, where there are any; `h_TD` has their graph, unless it is computed
    again."""


@dataclass(frozen=True, slots=True)
class HiddenGrad:
    """Gradient of what enters the first layer with experts."""

    dh_TD: torch.Tensor
    hidden: Hidden


@dataclass(frozen=True, slots=True)
class Residual:
    """With one group, the residual stream where it waits for the experts, and the token of every
    row that each expert worker returns."""

    x_TD: torch.Tensor
    returned: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """What the backward of one attention half needs."""

    h_TD: torch.Tensor
    expert_TK: torch.Tensor
    """Decisions, which are never taken again."""
    computed: "Computed | None"
    """None where it is computed again."""
    sent: tuple[Dispatch, ...]
    returned: tuple[torch.Tensor, ...]
    """Token of every row that each expert worker of the layer before returned."""
    hidden: Hidden | None
    """In the first layer: where its input comes from."""


@dataclass(frozen=True, slots=True)
class Computed:
    """An attention half with its graph."""

    out: AttentionOut
    terms: torch.Tensor | None
    """Weighted router losses of the forward pass, or None where they have no weight."""


class AttentionSide:
    """Compute ops of one worker in its attention role."""

    def __init__(
        self, context: Context, role: Worker, parameters: Parameters, slots: SlotTable
    ) -> None:
        self._context = context
        self._role = role
        self._config = context.config
        self._parameters = parameters
        self._slots = slots
        self._choices = choices_spec(context.spec, role.group, role.ring)
        self._choices_channel: TransportChannel | None = None
        self._halves = Halves(context, {**parameters.values, **parameters.balances})
        self._recomputes = context.recomputes(Side.ATTENTION)
        self._parts: Sequence[Part] = ()
        self._totals = StepTotals(valid_targets=0, tokens=0, sequences=0, micro_batches=0)
        self._training = True
        self.counters = StepCounters.zero(context, 0)
        self.recording: Recording | None = None

    def connect(self, channels: Mapping[str, TransportChannel]) -> None:
        """Take the channel on which this role sums its choices, if there is one."""
        self._choices_channel = channels.get(self._choices.name)

    def begin(self, parts: Sequence[Part], totals: StepTotals, *, training: bool) -> None:
        """Take the data of a step or an evaluation."""
        self._parts, self._totals, self._training = parts, totals, training
        self.counters = StepCounters.zero(self._context, len(parts))

    def compute(self, instruction: Compute) -> None:
        """Execute one compute op."""
        layer, mb = instruction.layer, instruction.mb
        match instruction.op:
            case Op.EMBED:
                self._embed(mb)
            case Op.HEAD | Op.HEAD_EVAL:
                self._head(mb)
            case Op.EMBED_BWD:
                self._embed_bwd(mb)
            case Op.ATTN_FWD if layer is not None:
                self._attn_fwd(layer, mb)
            case Op.ATTN_BWD if layer is not None:
                self._attn_bwd(layer, mb)
            case Op.REDUCE_COUNTS if layer is not None:
                self._reduce_counts(layer, mb)
            case _:
                raise AssertionError(f"{instruction} is not for an attention worker")

    def expected(self, key: TransferKey, counts: Counts | None) -> Iterable[tuple[str, Message]]:
        """Peers and messages of an incoming payload."""
        wire, layer, mb = self._context.wire, key.layer, key.mb
        match key.received.kind:
            case SlotKind.RESIDUAL | SlotKind.DRESIDUAL:
                return [(self._twin(key), wire.residual(self._parts[mb].tokens))]
            case SlotKind.OUTPUTS if counts is not None:
                return [(peer, wire.outputs(rows)) for peer, (rows, _) in counts.items()]
            case SlotKind.OUTPUTS:
                residual = self._slots.wait_for(_slot(SlotKind.RESIDUAL, layer, mb), Residual)
                return [
                    (peer, wire.outputs(len(tokens)))
                    for peer, tokens in zip(self._experts(layer), residual.returned, strict=True)
                ]
            case SlotKind.DROWS:
                saved = self._slots.wait_for(_slot(SlotKind.SAVED, layer, mb), Saved)
                return [
                    (peer, wire.drows(len(sent.token_R), len(sent.row_P)))
                    for peer, sent in zip(self._experts(layer), saved.sent, strict=True)
                ]
            case kind:
                raise AssertionError(f"{kind} does not come to an attention worker")

    def _experts(self, layer: int) -> list[str]:
        """Whom rows of `layer` go to, and come back from: expert workers, or gateways."""
        return [str(worker) for worker in gateways(self._context.layout, layer, self._role)]

    def _twin(self, key: TransferKey) -> str:
        """The worker of the same rank at the other end of an attention-to-attention channel."""
        channel, own = key.channel, self._role
        other = channel.source if channel.target == own.group else channel.target
        return str(Worker(other, own.rank, own.ring))

    def _embed(self, mb: int) -> None:
        with torch.no_grad():
            h_BSD = embed(self._parameters.values[names.EMBED], self._parts[mb].tokens_BS)
        hidden = Hidden(h_BSD.flatten(0, 1))
        if self._config.model.dense_layers:
            before_TD, h_TD = self._halves.dense(
                self._parts[mb], hidden.h_TD, graph=self._keeps_graphs
            )
            hidden = Hidden(h_TD, before_TD)
        self._slots.put(_slot(SlotKind.HIDDEN, 0, mb), hidden)

    @property
    def _keeps_graphs(self) -> bool:
        return self._training and not self._recomputes

    def _embed_bwd(self, mb: int) -> None:
        gradient = self._slots.get(_slot(SlotKind.DHIDDEN, 0, mb), HiddenGrad)
        dh_TD, before_TD = gradient.dh_TD, gradient.hidden.before_TD
        if before_TD is not None:
            dh_TD = self._dense_bwd(mb, gradient.hidden.h_TD, before_TD, dh_TD)
        self._parameters.second_grad(names.EMBED).index_add_(
            0, self._parts[mb].tokens_BS.flatten(), dh_TD.to(self._context.exact)
        )

    def _dense_bwd(
        self, mb: int, h_TD: torch.Tensor, before_TD: torch.Tensor, dh_TD: torch.Tensor
    ) -> torch.Tensor:
        """Return the gradient of the dense layers' input."""
        if self._recomputes:
            before_TD, h_TD = self._halves.dense(self._parts[mb], before_TD, graph=True)
        model = self._config.model
        layers = range(model.dense_layers)
        own = [name for layer in layers for name in names.attention_shapes(model, layer)]
        inputs = [before_TD, *(self._parameters.values[name] for name in own)]
        dbefore_TD, *dparams = torch.autograd.grad(h_TD, inputs, dh_TD)
        self._parameters.accumulate(own, dparams)
        return dbefore_TD

    def _input(self, layer: int, mb: int) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Return the residual stream that enters `layer` (or the head, after the last one), and
        the token of every row that was added to it."""
        if layer == 0:
            return self._slots.get(_slot(SlotKind.HIDDEN, 0, mb), Hidden).h_TD, ()
        outputs = self._slots.get(_slot(SlotKind.OUTPUTS, layer - 1, mb), Incoming)
        parts = [outputs.views[peer] for peer in self._experts(layer - 1)]
        rows = [part["rows_RD"] for part in parts]
        layout, slot = self._context.layout, _slot(SlotKind.RESIDUAL, layer - 1, mb)
        if layout.groups == 1:
            residual = self._slots.get(slot, Residual)
            added = list(zip(residual.returned, rows, strict=True))
            return combine(residual.x_TD, added), residual.returned
        returned = tuple(part["token_R"].long() for part in parts)
        added = list(zip(returned, rows, strict=True))
        if layout.fused_residual:
            return sum_rows(self._parts[mb].tokens, added), returned
        (twin,) = self._slots.get(slot, Incoming).views.values()
        return combine(twin["x_TD"], added), returned

    def _attn_fwd(self, layer: int, mb: int) -> None:
        h_TD, returned = self._input(layer, mb)
        h_TD, out = self._halves.half(layer, self._parts[mb], h_TD, graph=self._keeps_graphs)
        expert_TK = out.routing.expert_TK
        if self.recording is not None:
            self.recording.choices[layer, mb] = expert_TK
        # a row per host is a row per gateway
        dedupe: Dedupe = "none" if self._config.parallel.dedupe == "none" else "rank"
        sent = plan_dispatch(out.routing.expert_TK, self._context.destinations, dedupe)
        self._slots.put(_slot(SlotKind.ROWS, layer, mb), self._pack_rows(layer, out, sent))
        self._put_residual(layer, mb, out.x_TD.detach(), sent)
        if not self._training:
            return
        number = self._context.model_layer(layer)
        self.counters.add_choices(number, out.routing.count_choices())
        for hop, taker_E in self._context.takers.items():
            rows = count_distinct(expert_TK, taker_E) if dedupe == "rank" else expert_TK.numel()
            self.counters.add_rows(hop, rows)
        terms = self._router_terms(layer, mb, out.routing)
        computed = Computed(out, terms) if self._keeps_graphs else None
        hidden = self._slots.get(_slot(SlotKind.HIDDEN, 0, mb), Hidden) if layer == 0 else None
        saved = Saved(h_TD, expert_TK, computed, sent, returned, hidden)
        self._slots.put(_slot(SlotKind.SAVED, layer, mb), saved)

    def _computed(self, layer: int, mb: int, saved: Saved) -> tuple[torch.Tensor, Computed]:
        """Return the input of an attention half as the leaf of its graph, and the half."""
        if saved.computed is not None:
            return saved.h_TD, saved.computed
        part = self._parts[mb]
        h_TD, out = self._halves.half(
            layer, part, saved.h_TD, graph=True, expert_TK=saved.expert_TK
        )
        return h_TD, Computed(out, self._router_terms(layer, mb, out.routing))

    def _router_terms(self, layer: int, mb: int, routing: Routing) -> torch.Tensor | None:
        """Note the router's losses and return their weighted sum, with the graph of `routing`."""
        loss, counters = self._config.train.loss, self.counters
        number = self._context.model_layer(layer)
        terms: list[torch.Tensor] = []
        with torch.set_grad_enabled(loss.z_coef > 0):
            z = z_loss(routing, self._totals)
        counters.z_LM[number, mb] = z.detach()
        if loss.z_coef > 0:
            terms.append(loss.z_coef * z)
        if loss.aux_scope == "sequence":
            with torch.set_grad_enabled(loss.aux_coef > 0):
                balance = sequence_balance_loss(
                    routing, self._parts[mb].tokens_BS.shape[0], self._totals
                )
            counters.balance_LM[number, mb] = balance.detach()
            if loss.aux_coef > 0:
                terms.append(loss.aux_coef * balance)
        return torch.stack(terms).sum() if terms else None

    def _pack_rows(self, layer: int, out: AttentionOut, sent: Sequence[Dispatch]) -> Outgoing:
        buffers, counts = {}, {}
        fused = self._context.layout.fused_residual
        # with a fused residual the experts normalise; what travels is the residual stream itself
        carried_TD = (out.x_TD if fused else out.n_TD).detach()
        gates = out.routing.gate_TK.detach().flatten()
        for peer, to in zip(self._experts(layer), sent, strict=True):
            message = self._context.wire.rows(len(to.token_R), len(to.row_P))
            buffer = message.allocate(self._context.device)
            views = message.views(buffer)
            torch.index_select(carried_TD, 0, to.token_R, out=views["rows_RD"])
            torch.index_select(gates, 0, to.choice_P, out=views["gate_P"])
            views["row_P"].copy_(to.row_P)
            views["expert_P"].copy_(to.expert_P)
            if "token_R" in views:
                views["token_R"].copy_(to.token_R)
            if "home_R" in views:
                first_choice = to.choice_P % self._config.model.top_k == 0
                home_R = to.token_R.new_zeros(len(to.token_R))
                views["home_R"].copy_(home_R.index_add_(0, to.row_P, first_choice.long()))
            buffers[peer], counts[peer] = buffer, (len(to.token_R), len(to.row_P))
        return Outgoing(buffers, counts)

    def _put_residual(
        self, layer: int, mb: int, x_TD: torch.Tensor, sent: Sequence[Dispatch]
    ) -> None:
        slot = _slot(SlotKind.RESIDUAL, layer, mb)
        layout = self._context.layout
        if layout.fused_residual:
            return
        if layout.direct_residual:
            twin = self._twin(TransferKey(layout.residual(layer), layer, mb))
            self._slots.put(slot, _one_message(twin, x_TD))
        else:
            self._slots.put(slot, Residual(x_TD, tuple(to.token_R for to in sent)))

    def _reduce_counts(self, layer: int, mb: int) -> None:
        saved = self._slots.get(_slot(SlotKind.SAVED, layer, mb), Saved)
        counts_E = count_values(saved.expert_TK.flatten(), self._config.model.experts)
        if self._choices_channel is not None:
            me, members = str(self._context.worker), self._choices.sources
            sum_in_rank_order(self._choices_channel, me, members, [counts_E])
        self._slots.put(_slot(SlotKind.COUNTS, layer, mb), counts_E)

    def _attn_bwd(self, layer: int, mb: int) -> None:
        saved = self._slots.get(_slot(SlotKind.SAVED, layer, mb), Saved)
        h_TD, computed = self._computed(layer, mb, saved)
        out = computed.out
        drows_TD, dgate_TK = self._dispatch_grads(layer, mb, saved)
        if self._context.layout.fused_residual:
            # the rows were x, and their gradient holds that of the residual
            outputs, grads = [out.x_TD], [drows_TD]
        else:
            outputs = [out.x_TD, out.n_TD]
            grads = [self._residual_grad(layer, mb), drows_TD]
        outputs.append(out.routing.gate_TK)
        grads.append(dgate_TK)
        for terms in (computed.terms, self._summed_term(layer, mb, out.routing)):
            if terms is not None:
                outputs.append(terms)
                grads.append(torch.ones_like(terms))
        own = self._own_names(layer)
        inputs = [h_TD, *(self._parameters.values[name] for name in own)]
        dh_TD, *dparams = torch.autograd.grad(outputs, inputs, grads)
        self._parameters.accumulate(own, dparams)
        if saved.hidden is not None:
            self._slots.put(_slot(SlotKind.DHIDDEN, 0, mb), HiddenGrad(dh_TD, saved.hidden))
        else:
            self._put_input_grads(layer - 1, mb, dh_TD, saved.returned)

    def _own_names(self, layer: int) -> list[str]:
        """Parameters of a layer of the ring that are on this side."""
        model, number = self._config.model, self._context.model_layer(layer)
        elsewhere = names.shared_shapes(model, number) if self._context.shared_with_experts else {}
        return [name for name in names.attention_shapes(model, number) if name not in elsewhere]

    def _residual_grad(self, layer: int, mb: int) -> torch.Tensor:
        slot = _slot(SlotKind.DRESIDUAL, layer, mb)
        if not self._context.layout.direct_residual:
            return self._slots.get(slot, torch.Tensor)
        (views,) = self._slots.get(slot, Incoming).views.values()
        return views["x_TD"]

    def _dispatch_grads(
        self, layer: int, mb: int, saved: Saved
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of what was sent as rows [T, D] and of the gates [T, K]."""
        drows = self._slots.get(_slot(SlotKind.DROWS, layer, mb), Incoming)
        views = [drows.views[peer] for peer in self._experts(layer)]
        tokens, top_k = saved.expert_TK.shape
        rows = [(to.token_R, view["rows_RD"]) for to, view in zip(saved.sent, views, strict=True)]
        gates = [(to.choice_P, view["gate_P"]) for to, view in zip(saved.sent, views, strict=True)]
        return sum_rows(tokens, rows), place_gates(tokens, top_k, gates)

    def _summed_term(self, layer: int, mb: int, routing: Routing) -> torch.Tensor | None:
        """Return the weighted balance loss over the whole micro-batch or step, or None for another
        scope.

        It is known only now that the counts of all workers have been summed."""
        loss, spec = self._config.train.loss, self._context.spec
        counts = [
            self._slots.get(_slot(SlotKind.COUNTS, layer, at), torch.Tensor)
            for at in spec.counts_read_by(mb)
        ]
        if not counts:
            return None
        if spec.counts_of_step:
            balance = global_balance_loss(routing, torch.stack(counts).sum(0), self._totals)
        else:
            balance = micro_batch_balance_loss(
                routing, counts[0], self._parts[mb].micro_batch_tokens, self._totals
            )
        self.counters.balance_LM[self._context.model_layer(layer), mb] = balance.detach()
        return loss.aux_coef * balance

    def _head(self, mb: int) -> None:
        part, model = self._parts[mb], self._config.model
        layers = self._context.layout.layers
        h_TD, returned = self._input(layers, mb)
        params = HeadParams.read(self._parameters.values, model)
        with torch.set_grad_enabled(self._training):
            h_TD = h_TD.detach().requires_grad_(self._training)
            loss = head_loss(
                params,
                h_TD,
                part.targets_BS.flatten(),
                model,
                self._totals,
                chunk_tokens=self._config.train.loss.head_tokens(model.vocab_size),
            )
        self.counters.loss_M[mb] = loss.detach()
        if not self._training:
            return
        own = [*names.head_shapes(model)]
        inputs = [h_TD, *(self._parameters.values[name] for name in own)]
        dh_TD, *dparams = torch.autograd.grad(loss, inputs)
        self._parameters.accumulate(own, dparams)
        self._put_input_grads(layers - 1, mb, dh_TD, returned)

    def _put_input_grads(
        self, layer: int, mb: int, dh_TD: torch.Tensor, returned: Sequence[torch.Tensor]
    ) -> None:
        """Send the gradient of the output of `layer` to whoever contributed to it: to each expert
        worker for the rows that it returned, and along the residual stream."""
        wire, layout = self._context.wire, self._context.layout
        buffers, counts = {}, {}
        for peer, token_R in zip(self._experts(layer), returned, strict=True):
            message = wire.doutputs(len(token_R))
            buffers[peer] = message.allocate(self._context.device)
            torch.index_select(dh_TD, 0, token_R, out=message.views(buffers[peer])["rows_RD"])
            counts[peer] = (len(token_R), 0)
        self._slots.put(_slot(SlotKind.DOUTPUTS, layer, mb), Outgoing(buffers, counts))
        slot = _slot(SlotKind.DRESIDUAL, layer, mb)
        if layout.fused_residual:
            return
        if layout.direct_residual:
            twin = self._twin(TransferKey(layout.residual_grad(layer), layer, mb))
            self._slots.put(slot, _one_message(twin, dh_TD))
        else:
            self._slots.put(slot, dh_TD)


def _slot(kind: SlotKind, layer: int, mb: int) -> Slot:
    return Slot(Side.ATTENTION, kind, layer, mb)


def _one_message(peer: str, x_TD: torch.Tensor) -> Outgoing:
    return Outgoing(
        {peer: x_TD.contiguous().view(torch.uint8).flatten()}, {peer: (x_TD.shape[0], 0)}
    )
