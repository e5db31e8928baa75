"""Expert parallelism with overlap: the all-to-all of one micro-batch behind the compute of another,
as in DualPipe's pairs (arXiv:2412.19437 section 3.2.1)."""

from disagmoe.schedule.builders.policies import best_list_schedule
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.timeline import Timeline


def ep_overlap(spec: ProgramSpec, costs: OpCosts, in_flight: int) -> Timeline:
    """The best list schedule with at most `in_flight` micro-batches on the ring, of which two make
    a pair; searched as hard as `af_pipe`, so that the two compare."""
    return best_list_schedule(spec, costs, in_flight)
