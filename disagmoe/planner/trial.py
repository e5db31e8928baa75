"""One layout compiled, what it takes of memory, and its simulation.

A step with many micro-batches is simulated with some of them; each further one adds what those
took on average after the first.
"""

from dataclasses import dataclass

from disagmoe.config.run import RunConfig
from disagmoe.costs.scenario import scenario_of
from disagmoe.costs.times import StepTimes
from disagmoe.schedule.bounds import lower_bound
from disagmoe.schedule.builders.policies import backward_first
from disagmoe.schedule.compile import Compiled, programs_of
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.from_config import ProgramRequest, programs_for
from disagmoe.schedule.timeline import simulate as list_schedule
from disagmoe.simulator.simulate import Memory, Result, memory_of, simulate_compiled

OPERATIONS = 40_000
"""Ops of a simulation, about; micro-batches are at least half as many again as may be in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A simulated step."""

    result: Result
    """Of the micro-batches that were simulated."""
    simulated: int
    makespan_s: float
    """Of all micro-batches of the step, from the first op to the last."""

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

    @property
    def fits(self) -> bool:
        """Whether every worker has room for what it keeps."""
        return all(one.fits for one in self.memory)

    @property
    def fullest(self) -> Memory:
        """The worker with the least room, or the largest lack of it."""
        return max(self.memory, key=lambda one: one.use.total / one.available)

    def simulate(self, *, by_group: bool = False) -> Timed:
        """Run the programs' events; `by_group` even where workers are unequal."""
        count, whole = self.part.micro_batches, self.config.micro_batches
        batch = self.part.train.global_batch_size
        result = simulate_compiled(
            self.compiled, self.times, batch, by_group=by_group, memory=self.memory
        )
        first = min(result.makespan_s, result.engine.op_end[_last(result)])
        each = (result.makespan_s - first) / max(1, count - 1)
        makespan_s = result.makespan_s + (whole - count) * each
        return Timed(result=result, simulated=count, makespan_s=makespan_s)


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
    compiled = request.build(costs) if best_order else _backward_first(request, costs)
    return Trial(
        config=run,
        part=part,
        compiled=compiled,
        times=times,
        memory=tuple(memory_of(scenario, compiled.programs)),
    )


def _backward_first(request: ProgramRequest, costs: OpCosts) -> Compiled:
    exposed = request.schedule == "ep_1f1b"
    timeline = list_schedule(
        request.spec, costs, backward_first, request.in_flight, exposed_exchanges=exposed
    )
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


def _last(result: Result) -> int:
    """The end of the first micro-batch."""
    engine = result.engine
    return (len(engine.lowered.chain) - 1) * engine.width
