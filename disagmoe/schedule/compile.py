"""From a layout to verified programs: builder, passes, verifier."""

from collections.abc import Callable
from dataclasses import dataclass

from disagmoe.errors import ScheduleError
from disagmoe.schedule.bounds import Bound, lower_bound
from disagmoe.schedule.builders.af_pipe import af_pipe
from disagmoe.schedule.builders.ep_1f1b import ep_1f1b
from disagmoe.schedule.builders.ep_overlap import ep_overlap
from disagmoe.schedule.builders.serial import serial
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import STEP_OPS, Instruction, Program, ProgramSet, ProgramSpec, StepEnd
from disagmoe.schedule.layout import Group
from disagmoe.schedule.passes.comm import Part, add_transfers, parts
from disagmoe.schedule.passes.lifetime import add_frees
from disagmoe.schedule.timeline import Timeline
from disagmoe.schedule.verify import verify

Builder = Callable[[ProgramSpec, OpCosts, int], Timeline]

BUILDERS: dict[str, Builder] = {
    "af_pipe": af_pipe,
    "ep_1f1b": ep_1f1b,
    "ep_overlap": ep_overlap,
    "serial": serial,
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """Programs, the timeline that they were planned on, and how short it could be."""

    programs: ProgramSet
    timeline: Timeline
    bound: Bound

    @property
    def gap(self) -> float:
        """Makespan over its lower bound, 1.0 at best."""
        return self.timeline.makespan / self.bound.time if self.bound.time else 1.0


def compile_programs(
    spec: ProgramSpec, *, schedule: str, in_flight: int, costs: OpCosts | None = None
) -> Compiled:
    """Compile and verify one program per group. Raises ScheduleError for an unknown schedule."""
    compiled = build_programs(spec, schedule=schedule, in_flight=in_flight, costs=costs)
    verify(compiled.programs)
    return compiled


def build_programs(
    spec: ProgramSpec, *, schedule: str, in_flight: int, costs: OpCosts | None = None
) -> Compiled:
    """Compile without the proof, for who applies the rules one by one; never run the result."""
    builder = BUILDERS.get(schedule)
    if builder is None:
        raise ScheduleError(f"unknown schedule {schedule!r}; known: {', '.join(BUILDERS)}")
    costs = costs or OpCosts()
    timeline = builder(spec, costs, in_flight)
    bound = lower_bound(
        spec, costs, timeline.in_flight, exposed_exchanges=timeline.exposed_exchanges
    )
    return Compiled(programs_of(timeline, spec), timeline, bound)


def programs_of(timeline: Timeline, spec: ProgramSpec) -> ProgramSet:
    """Programs whose ops have the order of `timeline`, not proven."""
    exposes = timeline.exposed_exchanges
    programs = tuple(
        Program(group, _instructions(part, group, spec, exposes))
        for group, part in parts(timeline, spec).items()
    )
    return ProgramSet(spec, programs)


def _instructions(
    part: Part, group: Group, spec: ProgramSpec, exposes: bool
) -> tuple[Instruction, ...]:
    woven = add_transfers(part, group, spec, exposed_exchanges=exposes)
    ends = [StepEnd(op) for op in STEP_OPS] if spec.training else []
    return (*add_frees(woven, group, spec), *ends)
