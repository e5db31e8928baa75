"""How short a step can be, from what a system computes and what it sends."""

from dataclasses import dataclass, replace

from disagmoe.runtime.profile import ATTENTION_OPS
from disagmoe.schedule.bounds import lower_bound, paths_of
from disagmoe.schedule.chain import chain
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import EXPERT_OPS, GATEWAY_OPS, ProgramSpec, payload
from disagmoe.units import MBIT


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


def floor_s(load: Load, rate_mbit: float, *, exposed: bool) -> float:
    """Return the larger of compute and bytes over rate, of the busiest host and link; their sum
    where every exchange is `exposed`, as in plain expert parallelism, which does one thing at a
    time."""
    compute_s, transfer_s = max(load.compute_s), wire_s(load, rate_mbit)
    return compute_s + transfer_s if exposed else max(compute_s, transfer_s)


def lower_bound_s(
    spec: ProgramSpec, costs: OpCosts, load: Load, rate_mbit: float, *, exposed: bool
) -> float:
    """Return a time that no step of `spec` can beat, in whatever order: the floor, and what fill
    and drain add to it (schedule/bounds.py, with all micro-batches in flight).

    `costs` say how the load is divided among the ops. For layouts of one group.
    """
    ideal = _ideal(spec, costs, load, rate_mbit)
    ring = lower_bound(spec, ideal, spec.micro_batches, exposed_exchanges=exposed).time
    return max(floor_s(load, rate_mbit, exposed=exposed), ring + max(load.rest_s))


def _ideal(spec: ProgramSpec, costs: OpCosts, load: Load, rate_mbit: float) -> OpCosts:
    """`costs` whose ops add up to the load, and whose transfers have the link to themselves."""
    paths, layout, count = paths_of(spec, costs), spec.layout, spec.micro_batches
    attention, experts = layout.all_groups[0], layout.all_groups[-1]
    border = len(load.ops_s) if layout.colocated else layout.attention_workers
    of_attention = max(load.ops_s[:border]) / (count * paths.work(str(attention)))
    of_experts = max(load.ops_s[border:] or load.ops_s) / (count * paths.work(str(experts)))
    sends = len(paths.uses[f"{attention} out"])
    transfer_s = wire_s(load, rate_mbit) / (count * sends)
    payloads = {str(payload(send.key.channel)) for step in chain(spec, 0) for send in step.sends}
    return replace(
        costs,
        **{op: getattr(costs, op) * of_attention for op in ATTENTION_OPS},
        **{op: getattr(costs, op) * of_experts for op in map(str, EXPERT_OPS | GATEWAY_OPS)},
        **dict.fromkeys(payloads, transfer_s),
    )


def pauses(spec: ProgramSpec, *, exposed: bool) -> int:
    """Return how often a link is idle in a step by construction: before each exposed exchange, four
    of which a layer has per micro-batch. Where they are not exposed it may never rest."""
    return 4 * spec.layout.layers * spec.micro_batches if exposed else 0


def rate_mbit_for(load: Load, exposed_share: float) -> float:
    """Return the rate at which plain expert parallelism waits for `exposed_share` of its step."""
    transfer_s = max(load.compute_s) * exposed_share / (1 - exposed_share)
    return load.link_bytes / MBIT / transfer_s
