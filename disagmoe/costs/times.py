"""Seconds of every op, transfer and end of a step, by worker, and as costs of a schedule."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import TypeVar

from disagmoe.costs import ops
from disagmoe.costs.beside import LayerTimes, stretches, waited_for
from disagmoe.costs.holdings import holdings
from disagmoe.costs.network import (
    Routes,
    Seconds,
    Transfer,
    home_tokens,
    network_bytes_per_s,
    nvlink_bytes_per_s,
    routes,
    transfer,
)
from disagmoe.costs.ops import AttentionWork, ExpertWork, GatewayWork
from disagmoe.costs.scenario import Scenario
from disagmoe.schedule.costs import Link, OpCosts
from disagmoe.schedule.ir import EXPERT_OPS, GATEWAY_OPS, INSIDE_HOSTS, Op, SlotKind
from disagmoe.schedule.layout import Side, Worker

UPDATE = "update"
"""What `Calibration.ops` calls the end of a step."""
_ACTIVATIONS = (SlotKind.ROWS, SlotKind.OUTPUTS, SlotKind.DOUTPUTS, SlotKind.DROWS)
_RESIDUALS = (SlotKind.RESIDUAL, SlotKind.DRESIDUAL)


@dataclass(frozen=True, slots=True)
class EndTimes:
    """What a worker does at the end of a step."""

    reduce_s: float
    """Summing gradients over those who hold the same."""
    update_s: float
    gather_s: float
    """Giving the updated shard to them."""


class StepTimes:
    """Durations of a scenario. Every micro-batch is taken to be a whole one."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._layers = _layers(scenario)
        self._edges = _edges(scenario)
        self._stretch = stretches(scenario, self._layers)

    def compute_s(self, op: Op, layer: int | None) -> Seconds:
        """Seconds of an op of `layer` of the ring on each worker of the group that does it."""
        layout = self.scenario.layout
        if op is Op.REDUCE_COUNTS:
            return (0.0,) * layout.attention_workers
        if layer is None:
            seconds, group = self._edges[op], layout.head
            if op in (Op.EMBED, Op.EMBED_BWD):
                group = layout.embedding
        else:
            seconds = self._layers[layer].ops[op]
            of_experts = op in EXPERT_OPS or op in GATEWAY_OPS
            group = (layout.experts if of_experts else layout.attention)(layer)
        paces = self.scenario.paces(layout.host(group))
        return tuple(
            time * stretch * pace
            for time, stretch, pace in zip(seconds, self._stretch[group], paces, strict=True)
        )

    def transfer(self, kind: SlotKind, layer: int) -> Transfer:
        """How `kind` of `layer` travels."""
        return self._layers[layer].transfers[kind]

    def end(self, worker: Worker) -> EndTimes:
        """What `worker` does at the end of a step."""
        return _end(self.scenario, worker)

    @property
    def slowest(self) -> "GroupTimes":
        """Durations of groups, which go at the pace of their slowest workers."""
        return GroupTimes(self)

    def op_costs(self) -> OpCosts:
        """Costs for the builders of schedules: means over the layers of the ring."""
        slowest, layers = self.slowest, self._kinds
        training = [op for op in Op if op in self._layers[0].ops]
        costs = {
            op.value: fmean([slowest.compute(op, one) for one in layers], weights=layers.values())
            for op in training
        }
        costs |= {op.value: slowest.compute(op, None) for op in self._edges}
        kinds = self._layers[0].transfers
        costs |= {
            kind.value: fmean(
                [slowest.link(kind, one).time for one in layers], weights=layers.values()
            )
            for kind in kinds
        }
        return OpCosts.from_seconds(costs)

    @cached_property
    def _kinds(self) -> dict[int, int]:
        """One layer of each kind, and how many there are."""
        layout = self.scenario.layout
        hosts = layout.groups if self.scenario.hardware.slow_worker else 1
        keys = Counter((id(one), layer % hosts) for layer, one in enumerate(self._layers))
        first: dict[tuple[int, int], int] = {}
        for layer, one in enumerate(self._layers):
            first.setdefault((id(one), layer % hosts), layer)
        return {first[key]: count for key, count in keys.items()}


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """Durations of groups: `disagmoe.schedule.costs.Times`."""

    by_worker: StepTimes

    def compute(self, op: Op, layer: int | None) -> float:
        """Seconds of an op on the slowest worker of its group."""
        return max(self.by_worker.compute_s(op, layer))

    def link(self, kind: SlotKind, layer: int) -> Link:
        """A transfer on the ways of the slowest workers."""
        return self.by_worker.transfer(kind, layer).link


def _layers(scenario: Scenario) -> list[LayerTimes]:
    """Layers of the ring; those that are alike are one object."""
    model, skewed = scenario.model, scenario.hardware.expert_skew > 0
    hosts = scenario.layout.groups if scenario.hardware.slow_worker else 1
    known: dict[tuple[int, int], LayerTimes] = {}
    found = []
    for layer in range(scenario.layout.layers):
        window = model.window_of(model.dense_layers + layer)
        key = (window, layer if skewed else layer % hosts)
        if key not in known:
            one = _layer(scenario, window, routes(scenario, layer))
            known[key] = waited_for(scenario, layer, one)
        found.append(known[key])
    return found


def _layer(scenario: Scenario, window: int, route: Routes) -> LayerTimes:
    model, of_attention, whole = scenario.model, scenario.attention_model, sum(scenario.tokens)
    attention = [
        AttentionWork(
            tokens=tokens,
            length=scenario.sequence_length,
            window=window,
            rows=route.sent,
            again=scenario.recomputes(Side.ATTENTION),
        )
        for tokens in scenario.tokens
    ]
    experts = [
        ExpertWork(
            pairs=whole * choices,
            experts=held,
            shared_tokens=home_tokens(scenario, choices),
            again=scenario.recomputes(Side.EXPERT),
        )
        for choices, held in zip(route.workers.choices, scenario.expert_parts, strict=True)
    ]
    on_attention, on_experts = scenario.attention, scenario.experts
    inputs = _each(experts, lambda work: ops.experts_inputs_s(on_experts, model, work))
    weights = _each(experts, lambda work: ops.experts_weights_s(on_experts, model, work))
    kinds = _ACTIVATIONS + (_RESIDUALS if scenario.layout.direct_residual else ())
    kinds += INSIDE_HOSTS if scenario.layout.two_hop else ()
    return LayerTimes(
        ops=_as_run(
            scenario,
            {
                Op.ATTN_FWD: _each(
                    attention,
                    lambda work: ops.attention_forward_s(on_attention, of_attention, work),
                ),
                Op.ATTN_BWD: _each(
                    attention,
                    lambda work: ops.attention_backward_s(on_attention, of_attention, work),
                ),
                Op.EXPERTS_FWD: _each(
                    experts, lambda work: ops.experts_forward_s(on_experts, model, work)
                ),
                Op.EXPERTS_DGRAD: inputs,
                Op.EXPERTS_WGRAD: weights,
                Op.EXPERTS_BWD: tuple(map(sum, zip(inputs, weights, strict=True))),
                **(_gateways(scenario, route) if scenario.layout.two_hop else {}),
            },
        ),
        transfers={kind: transfer(scenario, kind, route) for kind in kinds},
    )


def _gateways(scenario: Scenario, route: Routes) -> dict[Op, Seconds]:
    """Gateways have equal parts of what comes to all hosts."""
    workers, tokens = scenario.layout.expert_workers, sum(scenario.tokens)
    rows, copies = tokens * route.hosts / workers, tokens * sum(route.copies) / workers
    work, machine = GatewayWork(rows=rows, copies=copies), scenario.experts
    fan_out_s = (ops.fan_out_s(machine, scenario.model, work),) * workers
    gather_add_s = (ops.gather_add_s(machine, scenario.model, work),) * workers
    return {
        Op.FAN_OUT: fan_out_s,
        Op.GATHER_ADD: gather_add_s,
        Op.FAN_OUT_BWD: fan_out_s,
        Op.GATHER_ADD_BWD: gather_add_s,
    }


def _as_run(scenario: Scenario, kernels: Mapping[Op, Seconds]) -> dict[Op, Seconds]:
    """What whole ops take of which `kernels` has the kernels' seconds."""
    found = {}
    for op, seconds in kernels.items():
        machine = scenario.experts if op in EXPERT_OPS | GATEWAY_OPS else scenario.attention
        found[op] = tuple(map(machine.calibration.op(op.value), seconds))
    return found


_Work = TypeVar("_Work", AttentionWork, ExpertWork, int)


def _each(works: Sequence[_Work], seconds: Callable[[_Work], float]) -> Seconds:
    """Seconds of each worker's work; workers are mostly alike."""
    known = {work: seconds(work) for work in set(works)}
    return tuple(known[work] for work in works)


def _edges(scenario: Scenario) -> dict[Op, Seconds]:
    """Both ends of the network; dense layers count as part of the embedding."""
    machine, model = scenario.attention, scenario.model
    layers = [
        AttentionWork(
            tokens=1,
            length=scenario.sequence_length,
            window=model.window_of(layer),
            again=scenario.recomputes(Side.ATTENTION),
        )
        for layer in range(model.dense_layers)
    ]

    def embed(tokens: int) -> float:
        dense = (
            ops.dense_forward_s(machine, model, replace(layer, tokens=tokens)) for layer in layers
        )
        return ops.embed_s(machine, model, tokens) + sum(dense)

    def embed_backward(tokens: int) -> float:
        dense = (
            ops.dense_backward_s(machine, model, replace(layer, tokens=tokens)) for layer in layers
        )
        return ops.embed_backward_s(machine, model, tokens) + sum(dense)

    kernels = {
        Op.EMBED: _each(scenario.tokens, embed),
        Op.EMBED_BWD: _each(scenario.tokens, embed_backward),
        Op.HEAD: _each(scenario.tokens, lambda tokens: ops.head_s(machine, model, tokens)),
        Op.HEAD_EVAL: _each(
            scenario.tokens, lambda tokens: ops.head_s(machine, model, tokens, training=False)
        ),
    }
    return _as_run(scenario, kernels)


def _end(scenario: Scenario, worker: Worker) -> EndTimes:
    per_host = scenario.hardware.workers_per_node
    reduce_s = update_s = gather_s = 0.0
    for held in holdings(scenario, worker):
        of_experts = held.side is Side.EXPERT
        machine = scenario.experts if of_experts else scenario.attention
        neighbours = min(per_host, held.peers)
        apart = (held.replicas - neighbours) / held.replicas
        near = (neighbours - 1) / held.replicas
        latency_s = machine.calibration.latency_s if held.replicas > 1 else 0.0
        card = network_bytes_per_s(machine, scenario, of_experts=of_experts)
        per_byte = max(apart / card, near / nvlink_bytes_per_s(machine))
        reduce_s += held.parameters * 4 * per_byte + latency_s
        gather_s += held.parameters * machine.element_bytes * per_byte + latency_s
        kernels_s = ops.update_s(machine, held.parameters, held.shard)
        update_s += machine.calibration.op(UPDATE)(kernels_s)
    return EndTimes(reduce_s, update_s, gather_s)
