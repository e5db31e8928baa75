"""What bounds a division, in closed form: the busiest of compute and cards on either side.

The paper's T_a = max(C_a / (M P), V / (M_a B)) and T_f likewise (arXiv:2605.11005 section 4.3),
with achieved rates instead of peaks, forward and backward together, what comes in and what goes out
apart, and with the fill of the ring, its head and micro-batches in flight.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from disagmoe.config.costs import CostsConfig, ring_depth
from disagmoe.config.parallel import COLOCATED
from disagmoe.config.run import RunConfig
from disagmoe.costs.memory import machine_of, without_slots
from disagmoe.costs.scenario import Scenario, scenario_of
from disagmoe.costs.slots import SlotSizes
from disagmoe.costs.times import StepTimes
from disagmoe.planner.candidates import Division
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.ir import GATEWAY_OPS, INSIDE_HOSTS, Slot, SlotKind
from disagmoe.schedule.layout import Group, Layout, Side, Worker
from disagmoe.simulator.simulate import end_of_step_s

_MESSAGES = (SlotKind.ROWS, SlotKind.OUTPUTS, SlotKind.DOUTPUTS, SlotKind.DROWS)
DEPTHS = (1.0, 0.6, 0.35, 0.2, 0.1)
"""Shares of the micro-batches that keep the ring busy which are tried in flight, most first; fewer
need less memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofs:
    """Seconds per layer and micro-batch, forward and backward, of one pair of groups."""

    attention: float
    experts: float
    attention_network: float
    """The busier direction of the cards of an attention worker."""
    expert_network: float
    inside: float
    """What expert workers of a host send each other, where rows go in two hops."""
    transfers: float
    """All of them, one after the other."""

    @property
    def binding(self) -> str:
        """Name of the largest."""
        roofs = self._named
        return max(roofs, key=lambda name: roofs[name])

    @property
    def highest(self) -> float:
        """The largest: how often a pair of groups can take a micro-batch into a layer."""
        return max(self._named.values())

    @property
    def _named(self) -> dict[str, float]:
        return {
            "compute of attention": self.attention,
            "compute of experts": self.experts,
            "network of attention workers": self.attention_network,
            "network of expert workers": self.expert_network,
            "NVLink of expert workers": self.inside,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A division with a number of micro-batches in flight, before any simulation."""

    division: Division
    in_flight: int
    roofs: Roofs
    step_s: float
    """No step of it is shorter where its layers, and the workers of a group, are equal."""
    need: float
    """Memory of its fullest worker over what there is; an estimate."""


def estimates(config: RunConfig, division: Division) -> list[Estimate]:
    """Estimates of `division`, by depth in flight; where memory is short also of those that compute
    activations again."""
    scenario = _scenario(config, division)
    need = Need.of(scenario)
    found = _estimates(config, division, scenario, need)
    if need.states > 1 or all(one.need <= 1 for one in found):
        return found
    for other in division.with_less_memory:
        scenario = _scenario(config, other)
        found += _estimates(config, other, scenario, Need.of(scenario))
    return found


def _scenario(config: RunConfig, division: Division) -> Scenario:
    run = division.of(config, 0)
    return scenario_of(run, programs_for(run).spec.layout)


def _estimates(
    config: RunConfig, division: Division, scenario: Scenario, need: "Need"
) -> list[Estimate]:
    run = division.of(config, 0)
    if need.share(1) > 1:  # most divisions: no time is lost on them
        return [_hopeless(division, need)]
    times = StepTimes(scenario)
    costs = times.op_costs()
    roofs = roofs_of(times, costs)
    end_s = end_of_step_s(times)
    return [
        Estimate(
            division=division,
            in_flight=depth,
            roofs=roofs,
            step_s=_step_s(run, costs, roofs, depth) + end_s,
            need=need.share(depth, _spread(run, costs, roofs, depth)),
        )
        for depth in _depths(run, costs)
    ]


def _hopeless(division: Division, need: "Need") -> Estimate:
    none = Roofs(
        attention=0.0,
        experts=0.0,
        attention_network=0.0,
        expert_network=0.0,
        inside=0.0,
        transfers=0.0,
    )
    return Estimate(division=division, in_flight=1, roofs=none, step_s=math.inf, need=need.share(1))


def _depths(run: RunConfig, costs: OpCosts) -> list[int]:
    parallel, count = run.parallel, run.micro_batches
    full = ring_depth(
        CostsConfig(**costs.to_dict()),
        groups=parallel.groups,
        residual="fused" if parallel.residual == "auto" else parallel.residual,
        colocated=parallel.schedule in COLOCATED,
    )
    deepest = 1 if parallel.one_by_one else min(full, count)
    least = 2 if parallel.schedule == "ep_overlap" and count > 1 else 1
    return list(dict.fromkeys(max(least, round(share * deepest)) for share in DEPTHS))


def roofs_of(times: StepTimes, costs: OpCosts | None = None) -> Roofs:
    """Means over layers, of the slowest workers; `costs` are those of `times`, where they are known
    already."""
    scenario = times.scenario
    costs = costs or times.op_costs()
    kinds = (SlotKind.ROWS, SlotKind.OUTPUTS, SlotKind.DOUTPUTS, SlotKind.DROWS)
    rows, outputs, doutputs, drows = (times.transfer(kind, 0) for kind in kinds)
    attention = costs.attn_fwd + costs.attn_bwd
    experts = costs.experts_fwd + costs.experts_bwd
    transfers = costs.rows + costs.outputs + costs.doutputs + costs.drows
    inside = 0.0
    if scenario.layout.two_hop:
        experts += sum(getattr(costs, op) for op in GATEWAY_OPS)
        transfers += sum(getattr(costs, kind) for kind in INSIDE_HOSTS)
        inside = sum(max(times.transfer(kind, 0).near_source) for kind in INSIDE_HOSTS)
    if scenario.layout.colocated:
        attention = experts = attention + experts
        if not scenario.overlaps:
            attention = experts = attention + transfers
    return Roofs(
        attention=attention,
        experts=experts,
        attention_network=max(
            max(rows.out) + max(doutputs.out), max(outputs.into) + max(drows.into)
        ),
        expert_network=max(max(rows.into) + max(doutputs.into), max(outputs.out) + max(drows.out)),
        inside=inside,
        transfers=transfers,
    )


def _step_s(config: RunConfig, costs: OpCosts, roofs: Roofs, in_flight: int) -> float:
    """Work, fill and micro-batches in flight (`schedule/bounds.py` has the same for programs)."""
    layers, groups = config.model.moe_layers, config.parallel.groups
    count, trip = config.micro_batches, _trip_s(config, roofs)
    work = count * math.ceil(layers / groups) * roofs.highest
    head = count * (math.ceil(layers / groups) - 1) * roofs.attention + count * costs.head
    chain = layers * trip + costs.head
    return max(work + (groups - 1) * trip, head, count * chain / in_flight)


def _trip_s(config: RunConfig, roofs: Roofs) -> float:
    """Of a micro-batch through a layer, forward and backward."""
    overlaps = config.parallel.schedule not in ("ep_1f1b", "serial")
    compute = roofs.attention + roofs.experts
    if config.parallel.schedule in COLOCATED:
        compute /= 2
    return compute + (roofs.transfers if overlaps else 0.0)


def _spread(config: RunConfig, costs: OpCosts, roofs: Roofs, in_flight: int) -> float:
    """How much of a micro-batch's way lies between the first and the last of those in flight, which
    follow each other as fast as the highest roof lets them."""
    layers = config.model.moe_layers
    behind = in_flight * math.ceil(layers / config.parallel.groups) * roofs.highest
    return behind / (layers * _trip_s(config, roofs) + costs.head)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNeed:
    """Bytes on the fullest worker of a group."""

    states: float
    """All that is there whatever is in flight."""
    activations: float
    """Of a micro-batch in all layers."""
    messages: float
    """Of a micro-batch on its way, divided over the groups of the ring."""
    room: float
    """What its machine has."""

    def bytes_of(self, kept: float, in_flight: float) -> float:
        """With all activations of `kept` micro-batches, and the messages of those in flight."""
        return self.states + kept * self.activations + in_flight * self.messages


@dataclass(frozen=True, slots=True)
class Need:
    """What each kind of group needs on its fullest worker."""

    kinds: tuple["GroupNeed", ...]

    @property
    def states(self) -> float:
        """What does not depend on activations, of what there is."""
        return max(one.states / one.room for one in self.kinds)

    def share(self, in_flight: int, spread: float = 0.0) -> float:
        """Of what there is. `spread` is how much of a micro-batch's way, forward and backward, lies
        between the first and the last in flight once they are as far apart as they get.

        A step begins with forwards alone, which follow each other closely: most of those in flight
        have all their activations when the first goes back. A twelfth of `spread` is what is gone
        by then in list schedules of the layouts that plans end with, give or take a twentieth."""
        kept = max(1.0, in_flight * (1 - min(2.0, spread) / 12))
        return max(one.bytes_of(kept, in_flight) / one.room for one in self.kinds)

    @classmethod
    def of(cls, scenario: Scenario) -> "Need":
        """What the groups of `scenario` need."""
        return cls(tuple(_kinds(scenario)))


def _unlike(layout: Layout) -> list[Group]:
    """Groups of which no two have as many layers and the same ends of the network."""
    ends = (layout.embedding, layout.head)
    kinds: dict[tuple[object, ...], Group] = {}
    for group in layout.all_groups:
        roles = layout.roles_of(group)
        layers = tuple(len(layout.layers_of(role)) for role in roles)
        kinds.setdefault((group.side, layers, *(end in roles for end in ends)), group)
    return list(kinds.values())


def _kinds(scenario: Scenario) -> Iterator[GroupNeed]:
    layout = scenario.layout
    sizes = {group.side: SlotSizes(scenario, Worker(group, 0)) for group in layout.all_groups}
    for group in _unlike(layout):
        machine = machine_of(scenario, group)
        size, roles = sizes[group.side], layout.roles_of(group)
        yield GroupNeed(
            states=without_slots(scenario, Worker(group, 0)).total,
            activations=sum(_saved(size, role.side, layout.layers_of(role)) for role in roles),
            messages=sum(size(Slot(role.side, kind, 0, 0)) for role in roles for kind in _MESSAGES)
            / layout.groups,
            room=machine.hardware.memory_bytes,
        )


def _saved(sizes: SlotSizes, side: Side, layers: Sequence[int]) -> float:
    """Bytes of activations of all `layers`; but for the first one they are taken to be alike."""
    first, last = (sizes(Slot(side, SlotKind.SAVED, at, 0)) for at in (layers[0], layers[-1]))
    return first + (len(layers) - 1) * last
