"""Simulated steps of the split, on as many processes as are asked for."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from disagmoe.costs.times import StepTimes
from disagmoe.planner.processes import processes
from disagmoe.planner.roofline import Roofs, roofs_of
from disagmoe.planner.trial import trial
from disagmoe.reproduce.setting import Setting, Split, split_run, times_of
from disagmoe.schedule.accounting import Kind
from disagmoe.simulator.simulate import Memory

LEAST = 4
"""Workers that the smaller side of a pair has at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulation; `split` None is the division whose highest roof is lowest."""

    setting: Setting
    split: Split | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A step of the split without the sums of gradients and the update, which all systems have."""

    split: Split
    seconds: float
    compute: float
    """Seconds of it that a worker computes, on average."""
    exposed: float
    """Seconds that it waits for the network."""
    bound: float
    """No schedule is shorter."""
    bound_name: str
    roof: float
    """Seconds of the busiest resource alone, without fill and drain: the paper's closed form."""
    binding: str
    """Which resource that is."""
    fullest: float
    """Memory of the fullest worker over what it has, with balanced routing."""
    states: float
    """Of that memory, weights, gradients and optimizer, where there are most."""

    @property
    def gap(self) -> float:
        """Seconds over the bound."""
        return self.seconds / self.bound


Found = Mapping[Case, Outcome]


def outcomes(cases: Iterable[Case], jobs: int) -> dict[Case, Outcome]:
    """Simulate each case once."""
    wanted = list(dict.fromkeys(cases))
    with processes(max(1, min(jobs, len(wanted)))) as each:
        return dict(zip(wanted, each(outcome, wanted), strict=True))


def outcome(case: Case) -> Outcome:
    """Simulate one step, groups at the pace of their slowest workers."""
    setting = case.setting
    split = case.split or balanced(setting)
    run = split_run(setting, split)
    tried = trial(run, best_order=True)
    timed = tried.simulate(by_group=True)
    result, workers = timed.result, run.parallel.workers
    whole = timed.makespan_s / result.makespan_s

    def spent(kind: Kind) -> float:
        return sum(seconds[kind] for seconds in result.seconds.values()) / workers * whole

    roofs = roofs_of(tried.times)
    return Outcome(
        split=split,
        seconds=timed.makespan_s,
        compute=spent(Kind.COMPUTE),
        exposed=spent(Kind.RECV_WAIT),
        bound=timed.bound.time,
        bound_name=timed.bound.name,
        roof=roof_s(setting, split, roofs),
        binding=roofs.binding,
        fullest=max(_share(memory) for memory in tried.memory),
        states=max(_states(memory) for memory in tried.memory),
    )


def balanced(setting: Setting) -> Split:
    """The division of a pair of groups whose highest roof is lowest."""
    splits = [
        Split(attention=count, experts=2 * setting.side - count)
        for count in range(LEAST, 2 * setting.side - LEAST + 1)
    ]
    legal = [one for one in splits if one.experts <= setting.model.experts]
    return min(legal, key=lambda one: roof_s(setting, one, roofs_of(split_times(setting, one))))


def split_times(setting: Setting, split: Split) -> StepTimes:
    """What ops and transfers of a split take."""
    return times_of(split_run(setting, split))


def roof_s(setting: Setting, split: Split, roofs: Roofs) -> float:
    """Seconds of a step whose busiest resource never waits."""
    layers = math.ceil(setting.model.moe_layers / setting.pairs)
    return setting.batch / split.attention * layers * roofs.highest


def _share(memory: Memory) -> float:
    return memory.use.expected / memory.available


def _states(memory: Memory) -> float:
    use = memory.use
    return (use.weights + use.gradients + use.optimizer) / memory.available
