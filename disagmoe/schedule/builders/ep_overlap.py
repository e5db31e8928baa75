"""Expert parallelism with overlap: the all-to-all of one micro-batch behind the compute of another,
as in DualPipe's pairs (arXiv:2412.19437 section 3.2.1)."""

from disagmoe.schedule.builders.af_pipe import rank
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.timeline import Timeline, simulate


def ep_overlap(spec: ProgramSpec, costs: OpCosts, in_flight: int) -> Timeline:
    """List schedule with at least two micro-batches on each group of workers."""
    return simulate(spec, costs, rank, max(in_flight, 2))
