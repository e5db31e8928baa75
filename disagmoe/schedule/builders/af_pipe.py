"""AF-Pipe: several micro-batches on the ring, backward first (paper section 4.2)."""

from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import BACKWARD_OPS, Compute, ProgramSpec
from disagmoe.schedule.timeline import Timeline, simulate


def af_pipe(spec: ProgramSpec, costs: OpCosts, in_flight: int) -> Timeline:
    """Greedy list schedule: backward before forward, then the oldest micro-batch, then the
    deepest layer, with at most `in_flight` micro-batches on the ring."""
    return simulate(spec, costs, rank, in_flight)


def rank(compute: Compute) -> tuple[int, ...]:
    """Rank of a ready op: backward, then the oldest micro-batch, then the deepest layer."""
    backward = compute.op in BACKWARD_OPS
    layer = -1 if compute.layer is None else compute.layer
    return (not backward, compute.mb, -layer)
