"""Orders for list schedules, and the search for the best of them.

No one order is best: which one is depends on how many micro-batches there are to fill and drain the
ring with, and on which resource is the bottleneck.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from disagmoe.schedule.bounds import Paths, lower_bound, paths_of
from disagmoe.schedule.chain import places
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import BACKWARD_OPS, Compute, Op, ProgramSpec
from disagmoe.schedule.timeline import Policy, Simulation, Timeline

PACES = (0.1, 0.25, 0.4, 0.7)
"""Shares of the period between micro-batches that `due` tries. A small one lets micro-batches run
side by side, a large one lets the oldest go first. Found with 430 specs and costs, of which these
and the other three orders miss the best of 30 orders by 1 % at most."""

DEPTHS = (1.0, 0.85, 0.7, 0.55, 0.4)
"""Shares of the micro-batches that may be in flight which are tried in turn. Fewer can be faster:
where the network is as busy as compute, by up to 9 %, for a list schedule takes all that it may."""

NEAR = 1.05
"""Makespan over its lower bound up to which no other depth is tried: it would gain 1 or 2 %."""

ROUNDING = 1 + 1e-9


def backward_first(compute: Compute) -> tuple[float, ...]:
    """Backward, then the oldest micro-batch, then the deepest layer: what the paper does."""
    return (compute.op not in BACKWARD_OPS, compute.mb, -_layer(compute))


def forward_first(compute: Compute) -> tuple[float, ...]:
    """Forward, then the oldest micro-batch, then the deepest layer: fills the ring soonest."""
    return (compute.op in BACKWARD_OPS, compute.mb, -_layer(compute))


def _layer(compute: Compute) -> int:
    return -1 if compute.layer is None else compute.layer


def due(paths: Paths, period: float) -> Policy:
    """What is due first: micro-batch j is due at an op at j periods + its distance to the op."""

    def rank(compute: Compute) -> tuple[float, ...]:
        head = paths.heads[compute.op, compute.layer]
        return (compute.mb * period + head, compute.mb)

    return rank


def ends_first(paths: Paths) -> Policy:
    """What is nearest to either end of its micro-batch: admits and finishes early."""

    def rank(compute: Compute) -> tuple[float, ...]:
        head = paths.heads[compute.op, compute.layer]
        return (-abs(head - paths.length / 2), compute.mb)

    return rank


def weights_last(policy: Policy) -> Policy:
    """`policy`, but gradients of parameters only where a group would be idle: nobody waits for
    them, though they do keep their micro-batch in flight."""

    def rank(compute: Compute) -> tuple[float, ...]:
        return (compute.op is Op.EXPERTS_WGRAD, *policy(compute))

    return rank


def policies(spec: ProgramSpec, costs: OpCosts, in_flight: int) -> Iterator[Policy]:
    """All orders that are worth a try."""
    for policy in _orders(spec, costs, in_flight):
        yield policy
        if spec.split_backward:
            yield weights_last(policy)


def _orders(spec: ProgramSpec, costs: OpCosts, in_flight: int) -> Iterator[Policy]:
    paths = paths_of(spec, costs)
    # micro-batches leave the ring in this rhythm at best
    period = max(paths.length / in_flight, *(paths.work(name) for name in paths.uses))
    yield backward_first
    yield forward_first
    yield ends_first(paths)
    for pace in PACES:
        yield due(paths, pace * period)


def best_list_schedule(spec: ProgramSpec, costs: OpCosts, in_flight: int) -> Timeline:
    """Return the shortest of the list schedules that are tried, the first of equal ones.

    Those are of all policies with `in_flight` micro-batches, and with fewer while the best of them
    stays far from its bound.
    """
    bound = lower_bound(spec, costs, in_flight).time
    chain = places(spec, costs)
    best: Timeline | None = None
    makespan = math.inf
    shares = (1.0,) if spec.gathers_step else DEPTHS
    for depth in dict.fromkeys(max(1, round(share * in_flight)) for share in shares):
        for policy in policies(spec, costs, depth):
            simulation = Simulation(spec, chain, policy, depth)
            if simulation.run(below=makespan):
                best = simulation.timeline()
                makespan = best.makespan
            if makespan <= ROUNDING * bound:
                break  # nothing is shorter
        if makespan <= NEAR * bound:
            break
    assert best is not None
    return replace(best, in_flight=in_flight)
