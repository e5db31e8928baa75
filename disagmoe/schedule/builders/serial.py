"""One micro-batch at a time, for debugging: nothing overlaps."""

from disagmoe.schedule.builders.af_pipe import af_pipe
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.timeline import Timeline


def serial(spec: ProgramSpec, costs: OpCosts, in_flight: int) -> Timeline:
    """AF-Pipe with a single micro-batch on the ring, whatever `in_flight` allows."""
    del in_flight
    return af_pipe(spec, costs, 1)
