"""From a run config, or from programs, to what a step of it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disagmoe.config.run import RunConfig
from disagmoe.costs.flops import model_flops
from disagmoe.costs.memory import MemoryUse, machine_of, memory_use
from disagmoe.costs.scenario import Scenario, scenario_of
from disagmoe.costs.times import StepTimes
from disagmoe.schedule.accounting import Kind, Shares, add_up
from disagmoe.schedule.bounds import Bound, lower_bound
from disagmoe.schedule.compile import Compiled
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.ir import ProgramSet
from disagmoe.schedule.layout import Group, Worker
from disagmoe.simulator.critical import CriticalPath, critical_path
from disagmoe.simulator.engine import Engine
from disagmoe.simulator.invariants import check, compute_work, way_work
from disagmoe.simulator.load import group_load, worker_load
from disagmoe.simulator.lowering import lower

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The fullest worker of a group."""

    worker: str
    use: MemoryUse
    available: float
    """Bytes that its machine has."""

    @property
    def fits(self) -> bool:
        """Whether there is room for all of it."""
        return self.use.total <= self.available


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One simulated step."""

    makespan_s: float
    """From the first op to the last."""
    end_s: float
    """Sums of gradients, update, and what gathers it; the slowest worker's."""
    tokens_per_s: float
    mfu: float
    """Model FLOPs over the peak of all workers' machines."""
    seconds: Mapping[str, Mapping[str, float]]
    """Time by group (or worker, where they are simulated one by one) and kind; of a group that of
    all its workers in one ring together."""
    memory: tuple[Memory, ...]
    """By group."""
    path: CriticalPath
    bound: Bound
    """Of the makespan."""
    operations: int
    """Ops and transfers simulated."""
    engine: Engine
    """Each op and transfer, for who draws them."""

    @property
    def step_s(self) -> float:
        """A whole step."""
        return self.makespan_s + self.end_s

    @property
    def gap(self) -> float:
        """Makespan over its lower bound, 1.0 at best."""
        return self.makespan_s / self.bound.time

    @property
    def shares(self) -> Shares:
        """What becomes of the time of all workers together."""
        return Shares.of(add_up(self.seconds.values()))

    @property
    def fits(self) -> bool:
        """Whether every worker has room for what it keeps."""
        return all(one.fits for one in self.memory)


def simulate(config: RunConfig) -> Result:
    """Compile and simulate a step of `config`. Raises ConfigError where it breaks a rule."""
    request = programs_for(config)
    times = StepTimes(scenario_of(config, request.spec.layout))
    return simulate_compiled(request.build(times.op_costs()), times, config.train.global_batch_size)


def simulate_compiled(
    compiled: Compiled,
    times: StepTimes,
    batch: int,
    *,
    by_group: bool = False,
    memory: Sequence[Memory] = (),
) -> Result:
    """Simulate programs for a step of `batch` sequences; `times` are those of their layout,
    `memory` is what `memory_of` says of them where it is known already.

    Workers are simulated one by one where they are unequal, else by group; with `by_group` always
    by group, at the pace of its slowest worker.
    """
    scenario, timeline = times.scenario, compiled.timeline
    one_by_one = uneven(scenario) and not by_group
    lowered = lower(compiled.programs, times.slowest)
    load = worker_load(lowered, times) if one_by_one else group_load(lowered)
    engine = Engine(lowered, load)
    engine.run()
    check(engine)
    makespan = max(engine.op_end)
    bound = (
        worker_bound(engine)
        if one_by_one
        else lower_bound(
            lowered.spec,
            times.slowest,
            timeline.in_flight,
            exposed_exchanges=timeline.exposed_exchanges,
        )
    )
    assert makespan >= bound.time * (1 - _ROUNDING), f"faster than {bound.name}"
    end = end_of_step_s(times) if lowered.ends else 0.0
    tokens = batch * scenario.sequence_length / (makespan + end)
    return Result(
        makespan_s=makespan,
        end_s=end,
        tokens_per_s=tokens,
        mfu=tokens * model_flops(scenario.model, scenario.sequence_length) / peak_flops(scenario),
        seconds=_seconds(engine, times, makespan, end),
        memory=tuple(memory or memory_of(scenario, compiled.programs)),
        path=critical_path(engine),
        bound=bound,
        operations=lowered.operations * (engine.width if one_by_one else 1),
        engine=engine,
    )


def uneven(scenario: Scenario) -> bool:
    """Whether workers of one group differ in what they do or in how fast."""
    asked = scenario.hardware
    unequal = len(set(scenario.tokens)) > 1 or len(set(scenario.expert_parts)) > 1
    return unequal or asked.expert_skew > 0 or bool(asked.slow_worker)


def worker_bound(engine: Engine) -> Bound:
    """The most work of one worker, or of one of its ways."""
    found = []
    for actors in engine.actors:
        for actor in actors:
            name = Worker(engine.lowered.spec.layout.all_groups[actor.group], actor.rank)
            found.append(Bound(f"work of {name}", compute_work(engine, actor)))
            for way, spoken in (("out", "out"), ("into", "in"), ("near", "NVLink")):
                found.append(Bound(f"work of {name} {spoken}", way_work(engine, actor, way)))
    return max(found, key=lambda bound: bound.time)


def end_of_step_s(times: StepTimes) -> float:
    """The longest end of a step: gradients' norm is that of all, so the update waits for all."""
    scenario = times.scenario
    groups = scenario.layout.all_groups
    ends = [times.end(worker) for group in groups for worker in _unlike(scenario, group)]
    return (
        max(end.reduce_s for end in ends)
        + max(end.update_s for end in ends)
        + max(end.gather_s for end in ends)
    )


def peak_flops(scenario: Scenario) -> float:
    """FLOPs per second that all workers' machines have at best."""
    workers = scenario.layout.workers
    return sum(machine_of(scenario, worker.group).peak_flops for worker in workers)


def memory_of(scenario: Scenario, programs: ProgramSet) -> list[Memory]:
    """The fullest worker of each group."""
    found = []
    for group in scenario.layout.all_groups:
        program = programs.part(group)
        machine = machine_of(scenario, group)
        uses = [
            Memory(
                worker=str(worker),
                use=memory_use(scenario, worker, program),
                available=machine.hardware.memory_bytes,
            )
            for worker in _unlike(scenario, group)
        ]
        found.append(max(uses, key=lambda one: one.use.total))
    return found


def _unlike(scenario: Scenario, group: Group) -> list[Worker]:
    """Workers of `group` of which no two hold the same; under skew all may differ."""
    members = scenario.layout.members(group)
    if scenario.hardware.expert_skew:
        return list(members)
    tokens, parts = scenario.tokens, scenario.expert_parts
    kinds: dict[tuple[int, ...], Worker] = {}
    for one in members:
        by_rank = [held[one.rank] for held in (tokens, parts) if len(held) == len(members)]
        kinds.setdefault(tuple(by_rank), one)
    return list(kinds.values())


def _seconds(
    engine: Engine, times: StepTimes, makespan: float, end: float
) -> dict[str, dict[str, float]]:
    layout = engine.lowered.spec.layout
    found = {}
    for actors in engine.actors:
        for actor in actors:
            group = layout.all_groups[actor.group]
            alike = layout.size(group) if len(actors) == 1 else 1
            name = str(group) if alike > 1 or len(actors) == 1 else str(Worker(group, actor.rank))
            computes = compute_work(engine, actor)
            finish = times.end(Worker(group, actor.rank))
            sums = min(end, finish.reduce_s + finish.gather_s) if end else 0.0
            update = min(end - sums, finish.update_s) if end else 0.0
            one = {
                Kind.COMPUTE: computes,
                Kind.RECV_WAIT: actor.exposed,
                Kind.SEND: sums,
                Kind.OPTIMIZER: update,
                Kind.IDLE: max(0.0, makespan - computes - actor.exposed) + end - sums - update,
            }
            found[name] = {str(kind): alike * time for kind, time in one.items()}
    return found
