"""One micro-batch at a time, for debugging: nothing overlaps."""

from disagmoe.schedule.builders.policies import backward_first
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.timeline import Timeline, simulate


def serial(spec: ProgramSpec, costs: OpCosts, in_flight: int) -> Timeline:
    """A single micro-batch on the ring, whatever `in_flight` allows."""
    del in_flight
    return simulate(spec, costs, backward_first, 1)
