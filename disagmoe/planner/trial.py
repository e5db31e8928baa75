"""One layout compiled, what it takes of memory, and its simulation.

A step with many micro-batches is simulated with some of them. The whole is longer by as much as its
list schedule is, which needs no programs and takes a tenth of the time: micro-batches come in waves
of those in flight, so the time of each further one is no mean of the first ones.
"""

from dataclasses import dataclass, replace

from disagmoe.config.run import RunConfig
from disagmoe.costs.scenario import scenario_of
from disagmoe.costs.times import StepTimes
from disagmoe.schedule.bounds import Bound, lower_bound
from disagmoe.schedule.builders.policies import backward_first
from disagmoe.schedule.chain import places
from disagmoe.schedule.compile import Compiled, programs_of
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.from_config import ProgramRequest, programs_for
from disagmoe.schedule.timeline import Simulation, Timeline
from disagmoe.simulator.simulate import Memory, Result, memory_of, simulate_compiled, uneven

OPERATIONS = 10_000
"""Ops of a simulation, about; micro-batches are at least half as many again as may be in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A simulated step."""

    result: Result
    """Of the micro-batches that were simulated."""
    simulated: int
    makespan_s: float
    """Of all micro-batches of the step, from the first op to the last."""
    bound: Bound
    """Of `makespan_s`."""

    @property
    def step_s(self) -> float:
        """The whole step."""
        return self.makespan_s + self.result.end_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Programs of a config with all of its division given, and what they take of memory."""

    config: RunConfig
    part: RunConfig
    """`config` with as many micro-batches as are simulated."""
    compiled: Compiled
    times: StepTimes
    memory: tuple[Memory, ...]
    planned_s: float
    """Of the list schedule of `part`, backward first."""

    @property
    def fits(self) -> bool:
        """Whether every worker has room for what it keeps."""
        return all(one.fits for one in self.memory)

    @property
    def fullest(self) -> Memory:
        """The worker with the least room, or the largest lack of it."""
        return max(self.memory, key=lambda one: one.use.total / one.available)

    def simulate(self, *, by_group: bool = False, planned_s: float = 0.0) -> Timed:
        """Run the programs' events; `by_group` even where workers are unequal. `planned_s` is that
        of the whole step, where it is known already."""
        batch = self.part.train.global_batch_size
        result = simulate_compiled(
            self.compiled, self.times, batch, by_group=by_group, memory=self.memory
        )
        longer = 1.0
        if self.part is not self.config:
            longer = (planned_s or planned(self.config)) / self.planned_s
        return Timed(
            result=result,
            simulated=self.part.micro_batches,
            makespan_s=result.makespan_s * longer,
            bound=self._bound(result, one_by_one=uneven(self.times.scenario) and not by_group),
        )

    def _bound(self, result: Result, *, one_by_one: bool) -> Bound:
        """Of the whole step: that of workers one by one is work, of which each micro-batch adds as
        much."""
        if self.part is self.config:
            return result.bound
        if one_by_one:
            more = self.config.micro_batches / self.part.micro_batches
            return replace(result.bound, time=result.bound.time * more)
        timeline = self.compiled.timeline
        return lower_bound(
            programs_for(self.config).spec,
            self.times.slowest,
            timeline.in_flight,
            exposed_exchanges=timeline.exposed_exchanges,
        )


def planned(run: RunConfig) -> float:
    """Seconds from the first op of a step to the last in the list schedule, backward first."""
    request = programs_for(run)
    costs = StepTimes(scenario_of(run, request.spec.layout)).op_costs()
    return _list_scheduled(request, costs).makespan


def trial(run: RunConfig, *, best_order: bool = False) -> Trial:
    """Compile `run`, whose `parallel.in_flight` is given, for `OPERATIONS` ops or the whole step.

    With `best_order` ops come in the order that a run would have, the best of many; else in the
    paper's, backward first, which is found seven times as fast.

    Raises:
        ConfigError: `run` breaks a rule between settings.
    """
    part = _with_fewer(run)
    request = programs_for(part)
    scenario = scenario_of(part, request.spec.layout)
    times = StepTimes(scenario)
    costs = times.op_costs()
    timeline = _list_scheduled(request, costs).timeline()
    compiled = request.build(costs) if best_order else _with_programs(request, costs, timeline)
    return Trial(
        config=run,
        part=part,
        compiled=compiled,
        times=times,
        memory=tuple(memory_of(scenario, compiled.programs)),
        planned_s=timeline.makespan,
    )


def _list_scheduled(request: ProgramRequest, costs: OpCosts) -> Simulation:
    simulation = Simulation(
        request.spec,
        places(request.spec, costs),
        backward_first,
        request.in_flight,
        exposed_exchanges=request.schedule == "ep_1f1b",
    )
    simulation.run()
    return simulation


def _with_programs(request: ProgramRequest, costs: OpCosts, timeline: Timeline) -> Compiled:
    exposed = timeline.exposed_exchanges
    bound = lower_bound(request.spec, costs, timeline.in_flight, exposed_exchanges=exposed)
    return Compiled(programs_of(timeline, request.spec), timeline, bound)


def _with_fewer(run: RunConfig) -> RunConfig:
    """`run` with a batch that makes no more micro-batches than a simulation takes."""
    count = max(run.parallel.in_flight * 3 // 2, OPERATIONS // (8 * run.model.moe_layers), 2)
    if count >= run.micro_batches:
        return run
    batch = count * run.parallel.micro_batch_size * run.parallel.rings
    train = run.train.model_copy(update={"global_batch_size": batch})
    return run.model_copy(update={"train": train})
