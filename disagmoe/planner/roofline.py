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
from disagmoe.schedule.ir import Slot, SlotKind
from disagmoe.schedule.layout import Side, Worker
from disagmoe.simulator.simulate import end_of_step_s

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
    transfers: float
    """All four, one after the other."""

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
    found = _estimates(config, division)
    if all(one.need <= 1 for one in found):
        return found
    return found + [one for other in division.with_less_memory for one in _estimates(config, other)]


def _estimates(config: RunConfig, division: Division) -> list[Estimate]:
    run = division.of(config, 0)
    layout = programs_for(run).spec.layout
    scenario = scenario_of(run, layout)
    need = _Need.of(scenario)
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
            need=need.share(depth),
        )
        for depth in _depths(run, costs)
    ]


def _hopeless(division: Division, need: "_Need") -> Estimate:
    none = Roofs(
        attention=0.0, experts=0.0, attention_network=0.0, expert_network=0.0, transfers=0.0
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
    if scenario.layout.colocated:
        attention = experts = attention + experts
        if not scenario.overlaps:
            attention = experts = attention + costs.rows + costs.outputs
            attention = experts = attention + costs.doutputs + costs.drows
    return Roofs(
        attention=attention,
        experts=experts,
        attention_network=max(
            max(rows.out) + max(doutputs.out), max(outputs.into) + max(drows.into)
        ),
        expert_network=max(max(rows.into) + max(doutputs.into), max(outputs.out) + max(drows.out)),
        transfers=costs.rows + costs.outputs + costs.doutputs + costs.drows,
    )


def _step_s(config: RunConfig, costs: OpCosts, roofs: Roofs, in_flight: int) -> float:
    """Work, fill and micro-batches in flight (`schedule/bounds.py` has the same for programs)."""
    layers, groups = config.model.moe_layers, config.parallel.groups
    count = config.micro_batches
    period = roofs.highest
    overlaps = config.parallel.schedule not in ("ep_1f1b", "serial")
    compute = roofs.attention + roofs.experts
    if config.parallel.schedule in COLOCATED:
        compute /= 2
    trip = compute + (roofs.transfers if overlaps else 0.0)
    work = count * math.ceil(layers / groups) * period
    head = count * (math.ceil(layers / groups) - 1) * roofs.attention + count * costs.head
    chain = layers * trip + costs.head
    return max(work + (groups - 1) * trip, head, count * chain / in_flight)


@dataclass(frozen=True, slots=True)
class _Need:
    """Bytes of states, and of all activations of one micro-batch, on the fullest worker of each
    kind of group, with what its machine has."""

    kinds: tuple[tuple[float, float, float], ...]

    def share(self, in_flight: int) -> float:
        """Of what there is; micro-batches behind the first keep half of theirs on average."""
        kept = 1 + (in_flight - 1) / 2
        return max((fixed + resident * kept) / room for fixed, resident, room in self.kinds)

    @classmethod
    def of(cls, scenario: Scenario) -> "_Need":
        return cls(tuple(_kinds(scenario)))


def _kinds(scenario: Scenario) -> Iterator[tuple[float, float, float]]:
    layout = scenario.layout
    sizes = {group.side: SlotSizes(scenario, Worker(group, 0)) for group in layout.all_groups}
    for group in layout.all_groups:
        machine = machine_of(scenario, group)
        fixed = without_slots(scenario, Worker(group, 0)).total
        resident = sum(
            _saved(sizes[group.side], role.side, layout.layers_of(role))
            for role in layout.roles_of(group)
        )
        yield fixed, resident, machine.hardware.memory_bytes


def _saved(sizes: SlotSizes, side: Side, layers: Sequence[int]) -> float:
    """Bytes of activations of all `layers`; but for the first one they are taken to be alike."""
    first, last = (sizes(Slot(side, SlotKind.SAVED, at, 0)) for at in (layers[0], layers[-1]))
    return first + (len(layers) - 1) * last
