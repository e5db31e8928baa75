"""Bytes of each slot of a worker, as the runtime fills them (`disagmoe/runtime`; a test compares).

Families that no run can execute yet are estimated in the same style: one kernel after the other,
what autograd keeps of each.

Letters: h hidden, q, k, v widths of queries, keys and values over all heads, i inner width,
E experts.
"""

from dataclasses import dataclass
from functools import cached_property

from disagmoe.config.model import ModelConfig
from disagmoe.costs.network import Routes, home_tokens, routes
from disagmoe.costs.parameters import normalises_qk
from disagmoe.costs.scenario import Scenario
from disagmoe.costs.wire import payload_bytes
from disagmoe.schedule.ir import ARRIVES_AS, INSIDE_HOSTS, Slot, SlotKind
from disagmoe.schedule.layout import Side, Worker

_FP32, _INDEX = 4, 8
_PAYLOADS = frozenset({SlotKind.ROWS, SlotKind.OUTPUTS, SlotKind.DOUTPUTS, SlotKind.DROWS})
_SENT_AS = {arrived: sent for sent, arrived in ARRIVES_AS.items()}
_FANNED = frozenset(
    {
        SlotKind.FAN_ROWS,
        SlotKind.PART_OUTPUTS,
        SlotKind.FAN_DOUTPUTS,
        SlotKind.PART_DROWS,
        SlotKind.ROUTES,
    }
)
"""Slots of gateways that hold a row for each expert worker of the host."""


def attention_saved_bytes(model: ModelConfig, element: int) -> float:
    """Bytes per token that the backward of a layer's attention side needs, without the plans of
    what was sent.

    Of a norm: its input widened to fp32 (where that is a copy), the normalised value and the
    result. Of the rest: the input, the projections' results where something non-linear follows,
    queries, keys, values and output of attention, the residual stream, and router values in fp32.
    """
    h, experts = model.hidden, model.experts
    norm = _norm_bytes(element)
    stream = 2 * element + 2 * (norm + element)  # both norms with their inputs' and outputs' copies
    widened = _FP32 if element < _FP32 else 0  # the router's input
    router = 2 * _FP32 * experts + model.top_k * (_INDEX + 3 * _FP32)
    shared = _swiglu_bytes(model.shared_width, element)
    return h * (stream + widened) + _mixing_bytes(model, element) + router + shared


def dense_saved_bytes(model: ModelConfig, element: int) -> float:
    """Bytes per token that the backward of one dense layer needs."""
    stream = 2 * element + 2 * (_norm_bytes(element) + element)
    return (
        model.hidden * stream
        + _mixing_bytes(model, element)
        + _swiglu_bytes(model.dense_width, element)
    )


def recomputed_attention_bytes(model: ModelConfig, element: int) -> float:
    """Bytes per token that are kept where the rest is computed again: the input, and where the
    token went."""
    return model.hidden * element + model.top_k * _INDEX


def _mixing_bytes(model: ModelConfig, element: int) -> float:
    """What attention itself keeps per token: rotated queries and keys, values and outputs, one
    logarithm per head; before that what norms of queries and keys, or of their compressed form,
    keep."""
    heads, output = model.heads, model.heads * model.head_dim
    queries = heads * model.qk_head_dim
    norm = _norm_bytes(element)
    if model.kv_lora_rank:
        keys, values = queries, output
        compressed = model.q_lora_rank + model.kv_lora_rank
        normed = compressed * (2 * element + norm)
    else:
        keys = values = model.kv_heads * model.head_dim
        normed = (queries + keys) * (norm + _own_input(element)) if normalises_qk(model) else 0
    return (queries + keys + values + output) * element + heads * _FP32 + normed


def _norm_bytes(element: int) -> int:
    """Of one element of a norm: its fp32 copy, and the normalised value before the weight."""
    return (_FP32 if element < _FP32 else 0) + element


def _own_input(element: int) -> int:
    """The input of a norm that nobody else keeps, where it is not copied to fp32."""
    return 0 if element < _FP32 else element


def _swiglu_bytes(width: int, element: int) -> int:
    """Gate, up and their product."""
    return 3 * width * element


@dataclass(frozen=True, slots=True)
class Load:
    """What comes to an expert worker in one layer of one micro-batch."""

    rows: float
    pairs: float
    home: float = 0.0
    """Tokens for which shared experts on this worker work."""


def expert_activation_bytes(model: ModelConfig, element: int) -> int:
    """Bytes per pair of input, gate and up, their product and the output."""
    return (2 * model.hidden + 3 * model.expert_width) * element


def fused_norm_bytes(model: ModelConfig, element: int) -> int:
    """Bytes per row that a fused residual's norm keeps: the row, what every norm keeps, the result,
    and whether the row is at home."""
    return model.hidden * (2 * element + _norm_bytes(element)) + 1


def expert_saved_bytes(
    model: ModelConfig, element: int, load: Load, *, fused: bool, recomputed: bool = False
) -> float:
    """Bytes that the backward of a layer's experts needs: per pair its activations, gate weight and
    places; with a fused residual per row what its norm keeps; per token of shared experts input,
    gate and up, their product and the output.

    Where activations are `recomputed`, the rows are kept instead."""
    pair: float = _FP32 + 3 * _INDEX
    row: float = _INDEX
    if recomputed:
        row += model.hidden * element + fused
    else:
        pair += expert_activation_bytes(model, element)
        row += fused * fused_norm_bytes(model, element)
    home = _INDEX + 2 * model.hidden * element + _swiglu_bytes(model.shared_width, element)
    return load.pairs * pair + load.rows * row + load.home * home


class SlotSizes:
    """Bytes by slot on one worker, with the expected routing."""

    def __init__(self, scenario: Scenario, worker: Worker) -> None:
        self._scenario = scenario
        self._rank = worker.rank
        self._recomputes = scenario.recomputes(Side.EXPERT)
        self._routes: dict[int, Routes] = {}
        self._known: dict[tuple[Side, SlotKind, int], float] = {}

    def __call__(self, slot: Slot) -> float:
        """Bytes of `slot`, which are the same for all micro-batches."""
        key = (slot.side, slot.kind, slot.layer)
        if key not in self._known:
            if slot.side is Side.EXPERT:
                self._known[key] = self.expert_bytes(slot.kind, self._load_of(slot))
            else:
                self._known[key] = self._attention_bytes(slot.kind, slot.layer)
        return self._known[key]

    def gateway_load(self, layer: int) -> Load:
        """What comes to this worker as a gateway in `layer`: an equal part of all that comes."""
        scenario, workers = self._scenario, self._scenario.layout.expert_workers
        tokens = sum(scenario.tokens) / workers
        return Load(tokens * self._route(layer).hosts, tokens * scenario.model.top_k)

    def fanned_load(self, layer: int) -> Load:
        """What it hands out to the experts of its host, or has back from them."""
        scenario, workers = self._scenario, self._scenario.layout.expert_workers
        tokens = sum(scenario.tokens) / workers
        return Load(tokens * sum(self._route(layer).copies), tokens * scenario.model.top_k)

    def load(self, layer: int) -> Load:
        """What comes to this worker's experts of `layer`."""
        route, tokens = self._route(layer), sum(self._scenario.tokens)
        choices = route.workers.choices[self._rank]
        return Load(
            tokens * route.copies[self._rank],
            tokens * choices,
            home_tokens(self._scenario, choices),
        )

    def _load_of(self, slot: Slot) -> Load:
        """What a slot of the expert role is filled with."""
        if slot.kind in _FANNED:
            return self.fanned_load(slot.layer)
        if self._scenario.layout.two_hop and slot.kind in _PAYLOADS:
            return self.gateway_load(slot.layer)
        return self.load(slot.layer)

    @cached_property
    def worst(self) -> Load:
        """All tokens of a micro-batch come to this worker's experts, with as many choices as it has
        experts for."""
        scenario = self._scenario
        tokens = sum(scenario.tokens)
        choices = min(scenario.model.top_k, scenario.expert_parts[self._rank])
        copies = choices if scenario.parallel.dedupe == "none" else 1
        home = tokens if scenario.shared_with_experts else 0
        return Load(tokens * copies, tokens * choices, home)

    @cached_property
    def peak(self) -> Load:
        """What a worker is to have room for: a multiple of what usually comes, at most the worst
        case."""
        usual, worst = self.load(0), self.worst
        times = self._scenario.hardware.routing_peak
        return Load(
            min(times * usual.rows, worst.rows),
            min(times * usual.pairs, worst.pairs),
            min(times * usual.home, worst.home),
        )

    def expert_bytes(self, kind: SlotKind, load: Load) -> float:
        """Bytes of a slot of the expert role under `load`."""
        scenario = self._scenario
        model, element = scenario.model, scenario.experts.element_bytes
        sent = _SENT_AS.get(kind, kind)
        if sent in _PAYLOADS or sent in INSIDE_HOSTS:
            size = payload_bytes(scenario, sent)
            return load.rows * size.row + load.pairs * size.choice
        if kind is SlotKind.ROUTES:  # what went where, and tokens
            return load.rows * _INDEX + 3 * load.pairs * _INDEX
        if kind is SlotKind.SAVED:
            return expert_saved_bytes(
                model,
                element,
                load,
                fused=scenario.layout.fused_residual,
                recomputed=self._recomputes,
            )
        if kind is SlotKind.DSAVED:  # gradients of both products; their inputs are in `saved`
            again = model.hidden + model.expert_width if self._recomputes else 0
            return load.pairs * (model.hidden + 2 * model.expert_width + again) * element
        raise AssertionError(f"{kind} is no slot of experts")

    def _attention_bytes(self, kind: SlotKind, layer: int) -> float:
        scenario = self._scenario
        model, tokens = scenario.model, scenario.tokens[self._rank]
        stream = tokens * model.hidden * scenario.attention.element_bytes
        if kind is SlotKind.COUNTS:
            return model.experts * _INDEX
        if kind in (SlotKind.HIDDEN, SlotKind.DHIDDEN, SlotKind.DRESIDUAL):
            return stream
        route = self._route(layer)
        rows = tokens * route.sent
        if kind is SlotKind.RESIDUAL:
            return stream + (0 if scenario.layout.groups > 1 else rows * _INDEX)
        if kind in _PAYLOADS:
            size = payload_bytes(scenario, kind)
            return rows * size.row + tokens * model.top_k * size.choice
        if kind is SlotKind.SAVED:
            plans = rows * _INDEX + 3 * tokens * model.top_k * _INDEX
            returned = rows * _INDEX if scenario.layout.groups > 1 else 0
            return tokens * self._saved_per_token(layer) + plans + returned
        raise AssertionError(f"{kind} is no slot of attention")

    def _saved_per_token(self, layer: int) -> float:
        """Bytes per token of attention's activations; dense layers are in those of the first
        layer."""
        scenario, again = self._scenario, self._scenario.recomputes(Side.ATTENTION)
        model, element = scenario.attention_model, scenario.attention.element_bytes
        kept = (recomputed_attention_bytes if again else attention_saved_bytes)(model, element)
        if layer == 0 and model.dense_layers:
            dense = 0.0 if again else model.dense_layers * dense_saved_bytes(model, element)
            kept += model.hidden * element + dense
        return kept

    def _route(self, layer: int) -> Routes:
        """Routes of `layer`; all layers have those of the first where nothing is skewed. A head's
        inputs are of the last layer, so no slot is of a layer beyond."""
        key = layer if self._scenario.hardware.expert_skew else 0
        if key not in self._routes:
            self._routes[key] = routes(self._scenario, key)
        return self._routes[key]
