"""How short a step can be, from what a system computes and what it sends."""

from dataclasses import dataclass, replace

from disagmoe.bench.scenarios import EP_1F1B
from disagmoe.schedule.bounds import lower_bound, paths_of
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Side
from disagmoe.units import MBIT

_OPS = {
    Side.ATTENTION: ("embed", "attn_fwd", "head", "attn_bwd", "embed_bwd"),
    Side.EXPERT: ("experts_fwd", "experts_bwd", "experts_dgrad", "experts_wgrad"),
}
_TRANSFERS = ("rows", "outputs", "doutputs", "drows")


@dataclass(frozen=True, slots=True)
class Load:
    """What one step takes from the hosts and from their links."""

    ops_s: tuple[float, ...]
    """Seconds that each host spends on the ops of its program."""
    rest_s: tuple[float, ...]
    """Seconds that each host spends on reading data and on its update: before and after all ops."""
    link_bytes: float
    """The most that a link carries in one direction."""
    free_bytes: float = 0.0
    """What of it a link gives for nothing, because it was idle before."""

    @property
    def compute_s(self) -> tuple[float, ...]:
        """Seconds that each host computes."""
        return tuple(ops + rest for ops, rest in zip(self.ops_s, self.rest_s, strict=True))


def wire_s(load: Load, rate_mbit: float) -> float:
    """Seconds that the busiest direction of a link needs."""
    return max(0.0, load.link_bytes - load.free_bytes) / (rate_mbit * MBIT)


def floor_s(schedule: str, load: Load, rate_mbit: float) -> float:
    """Return compute plus bytes over rate for plain expert parallelism, which does one thing at a
    time, and the larger of the two for what can do both at once; of the busiest host and link."""
    compute_s, transfer_s = max(load.compute_s), wire_s(load, rate_mbit)
    return compute_s + transfer_s if schedule == EP_1F1B else max(compute_s, transfer_s)


def lower_bound_s(
    schedule: str, spec: ProgramSpec, costs: OpCosts, load: Load, rate_mbit: float
) -> float:
    """Return a time that no step of `spec` can beat, in whatever order: the floor, and what fill
    and drain add to it (schedule/bounds.py, with all micro-batches in flight).

    `costs` say how the load is divided among the ops. For layouts of one group.
    """
    exposed = schedule == EP_1F1B
    ideal = _ideal(spec, costs, load, rate_mbit)
    ring = lower_bound(spec, ideal, spec.micro_batches, exposed_exchanges=exposed).time
    return max(floor_s(schedule, load, rate_mbit), ring + max(load.rest_s))


def _ideal(spec: ProgramSpec, costs: OpCosts, load: Load, rate_mbit: float) -> OpCosts:
    """`costs` whose ops add up to the load, and whose transfers have the link to themselves."""
    paths, layout, count = paths_of(spec, costs), spec.layout, spec.micro_batches
    attention, experts = layout.all_groups[0], layout.all_groups[-1]
    border = len(load.ops_s) if layout.colocated else layout.attention_workers
    scale = {
        Side.ATTENTION: max(load.ops_s[:border]) / (count * paths.work(str(attention))),
        Side.EXPERT: max(load.ops_s[border:] or load.ops_s) / (count * paths.work(str(experts))),
    }
    sends = len(paths.uses[f"{attention} out"])
    values: dict[str, float] = dict.fromkeys(_TRANSFERS, wire_s(load, rate_mbit) / (count * sends))
    for side, names in _OPS.items():
        values |= {name: getattr(costs, name) * scale[side] for name in names}
    return replace(costs, **values)


def pauses(spec: ProgramSpec, schedule: str) -> int:
    """Return how often a link is idle in a step by construction: before each all-to-all of plain
    expert parallelism, four of which a layer has per micro-batch. Others may never let it rest."""
    return 4 * spec.layout.layers * spec.micro_batches if schedule == EP_1F1B else 0


def rate_mbit_for(load: Load, exposed_share: float) -> float:
    """Return the rate at which plain expert parallelism waits for `exposed_share` of its step."""
    transfer_s = max(load.compute_s) * exposed_share / (1 - exposed_share)
    return load.link_bytes / MBIT / transfer_s
