"""AF-Pipe: several micro-batches on the ring, forward and backward mixed (paper section 4.2)."""

from disagmoe.schedule.builders.policies import best_list_schedule
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.timeline import Timeline


def af_pipe(spec: ProgramSpec, costs: OpCosts, in_flight: int) -> Timeline:
    """The best list schedule with at most `in_flight` micro-batches on the ring."""
    return best_list_schedule(spec, costs, in_flight)
