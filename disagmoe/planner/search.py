"""The search: estimates of all divisions, list schedules of the best, simulations of the best of
those.

A list schedule is of the whole step and within a few percent of the simulation, but does not say
whether the programs fit into memory.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from disagmoe.config.run import RunConfig
from disagmoe.errors import ConfigError
from disagmoe.planner.candidates import Division, divisions, two_kinds
from disagmoe.planner.processes import Map, processes
from disagmoe.planner.roofline import Estimate, estimates
from disagmoe.planner.trial import planned, trial
from disagmoe.schedule.accounting import Shares
from disagmoe.schedule.bounds import Bound
from disagmoe.simulator.simulate import Memory
from disagmoe.units import format_bytes

DEPTHS = 3
"""Depths in flight of one division that are looked at: deep ones tie."""
TRIES = 3
"""How many times as many are list-scheduled where none of the first ones turns out to fit."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How many divisions of a layout are looked at more closely."""

    planned: int
    """List-scheduled, in the order of their estimates."""
    simulated: int
    """Compiled and simulated, in the order of their list schedules."""


EFFORTS = {"af_pipe": Effort(6, 2), "ep_overlap": Effort(6, 2), "ep_1f1b": Effort(4, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A division that was simulated."""

    estimate: Estimate
    config: RunConfig
    """It can be trained."""
    memory: tuple[Memory, ...]
    """By group."""
    shares: Shares
    bound: Bound
    """Of the makespan."""
    gap: float
    """Makespan over its bound."""
    micro_batches: int
    simulated: int
    step_s: float
    tokens_per_s: float

    @property
    def schedule(self) -> str:
        """Its layout."""
        return self.config.parallel.schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A division whose programs do not fit."""

    estimate: Estimate
    fullest: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The choice, and what it was chosen from."""

    choices: tuple[Choice, ...]
    """Those that fit, best first."""
    divisions: int
    estimates: int
    fitting: int
    """Estimates that fit into memory."""
    planned: int
    """List-scheduled."""
    other_way: Choice | None
    """The best division with rows sent the other way, once to each worker or to each host; None
    where there is no other way, or it does not fit."""
    two_kinds: bool
    """Both sides have machines of their own, so that no colocated layout was looked at."""

    @property
    def best(self) -> Choice:
        """The choice."""
        return self.choices[0]


@dataclass(frozen=True, slots=True)
class Sketch:
    """An estimate and its list schedule."""

    estimate: Estimate
    planned_s: float = 0.0
    """Of the whole step; 0 where it is not known."""

    @property
    def schedule(self) -> str:
        """Its layout."""
        return self.estimate.division.schedule


def search(config: RunConfig, *, jobs: int = 1) -> Plan:
    """Divide the workers of `config` anew, for the most tokens per second, on `jobs` processes.

    Raises:
        ConfigError: nothing fits into memory, or the loss ties the depth in flight, which is
            chosen here, to the number of micro-batches.
    """
    if config.train.loss.balances_step:
        raise ConfigError(
            'train.loss.aux_scope = "global" needs all micro-batches of a step in flight, which '
            'no plan is made for; plan with scope "sequence", or divide the workers yourself'
        )
    found = divisions(config)
    if not found:
        raise ConfigError(
            f"{config.parallel.workers} workers and train.global_batch_size = "
            f"{config.train.global_batch_size} allow no layout; give at least 2 workers, and a "
            "batch with a sequence for each attention worker"
        )
    with processes(jobs) as each:
        every = list(chain.from_iterable(each(partial(estimates, config), found)))
        fitting = sorted((one for one in every if one.need <= 1), key=lambda one: one.step_s)
        sketches, tried = _look_closer(config, fitting, each)
        if not tried:
            nearest = min(every, key=lambda one: one.need)
            tried = [attempt(config, Sketch(nearest))]
        choices = sorted(_choices(tried), key=lambda one: one.step_s)
        if not choices:
            raise ConfigError(
                _nothing_fits(config, [one for one in tried if isinstance(one, Refusal)])
            )
        other = _other_way(config, choices, fitting)
    return Plan(
        choices=tuple(choices),
        divisions=len(found),
        estimates=len(every),
        fitting=len(fitting),
        planned=len(sketches),
        other_way=other,
        two_kinds=two_kinds(config),
    )


def _look_closer(
    config: RunConfig, fitting: Sequence[Estimate], each: Map
) -> tuple[list[Sketch], list[Choice | Refusal]]:
    """List-schedule the best estimates of each layout, and simulate the best of those that fit."""
    ranked = {schedule: _ranked(fitting, schedule) for schedule in EFFORTS}
    sketches: list[Sketch] = []
    tried: list[Choice | Refusal] = []
    for at in range(TRIES):
        have = {one.schedule for one in _choices(tried)}
        lacking = {name: effort for name, effort in EFFORTS.items() if name not in have}
        next_ = [ranked[name][at * e.planned : (at + 1) * e.planned] for name, e in lacking.items()]
        new = each(partial(sketch, config), list(chain.from_iterable(next_)))
        sketches += new
        tried += _simulated(config, sorted(new, key=lambda one: one.planned_s), each)
    return sketches, tried


def _simulated(config: RunConfig, sketches: Sequence[Sketch], each: Map) -> list[Choice | Refusal]:
    """The best of `sketches`, as many of each layout as are wanted; one after another in place of
    those that do not fit."""
    tried: list[Choice | Refusal] = []
    waiting = {name: [one for one in sketches if one.schedule == name] for name in EFFORTS}
    while True:
        fit = Counter(one.schedule for one in _choices(tried))
        next_ = []
        for name, effort in EFFORTS.items():
            lacking = effort.simulated - fit[name]
            next_ += waiting[name][:lacking]
            waiting[name] = waiting[name][lacking:]
        if not next_:
            return tried
        tried += each(partial(attempt, config), next_)


def _choices(tried: Sequence["Choice | Refusal"]) -> list[Choice]:
    return [one for one in tried if isinstance(one, Choice)]


def sketch(config: RunConfig, estimate: Estimate) -> Sketch:
    """List-schedule `estimate`."""
    return Sketch(estimate, planned(estimate.division.of(config, estimate.in_flight)))


def attempt(config: RunConfig, sketch: Sketch) -> Choice | Refusal:
    """Compile the division of `sketch`, and simulate it where it fits."""
    estimate = sketch.estimate
    found = trial(estimate.division.of(config, estimate.in_flight))
    if not found.fits:
        return Refusal(estimate=estimate, fullest=found.fullest)
    timed = found.simulate(planned_s=sketch.planned_s)
    return Choice(
        estimate=estimate,
        config=found.config,
        memory=found.memory,
        shares=timed.result.shares,
        bound=timed.bound,
        gap=timed.makespan_s / timed.bound.time,
        micro_batches=found.config.micro_batches,
        simulated=timed.simulated,
        step_s=timed.step_s,
        tokens_per_s=config.train.global_batch_size * config.train.sequence_length / timed.step_s,
    )


def _other_way(
    config: RunConfig, choices: Sequence[Choice], fitting: Sequence[Estimate]
) -> Choice | None:
    """The best of `choices` with rows sent the other way, at the depth that is best for it."""
    best = choices[0].estimate.division
    simulated = [one for one in choices if _is_other_way(one.estimate.division, best)]
    if simulated:
        return simulated[0]
    for one in fitting:
        if _is_other_way(one.division, best):
            found = attempt(config, Sketch(one))
            return found if isinstance(found, Choice) else None
    return None


def _is_other_way(one: Division, other: Division) -> bool:
    alike = replace(one, dedupe=other.dedupe, recompute=other.recompute)
    return one.dedupe != other.dedupe and alike == other


def _ranked(fitting: Sequence[Estimate], schedule: str) -> list[Estimate]:
    """Those of one layout, at the best depths in flight of each division."""
    seen: Counter[Division] = Counter()
    kept = []
    for one in fitting:
        if one.division.schedule == schedule and seen[one.division] < DEPTHS:
            seen[one.division] += 1
            kept.append(one)
    return kept


def _nothing_fits(config: RunConfig, refused: Sequence[Refusal]) -> str:
    """What is missing in the nearest of all divisions."""
    nearest = min(refused, key=lambda one: _fullness(one.fullest))
    fullest = nearest.fullest
    use, workers = fullest.use, config.parallel.workers
    states = use.weights + use.gradients + use.optimizer
    rest = use.total - states - use.slots - use.headroom
    return (
        f"no division of {workers} workers holds this model; the nearest, "
        f"{nearest.estimate.division.summary} with {nearest.estimate.in_flight} micro-batches in "
        f"flight, needs {format_bytes(use.total)} on {fullest.worker} of "
        f"{format_bytes(fullest.available)}: {format_bytes(states)} of weights, gradients and "
        f"optimizer, {format_bytes(use.slots)} of activations, {format_bytes(use.headroom)} in "
        f"case more tokens come to it, and {format_bytes(rest)} more; use more workers (at least "
        f"{math.ceil(workers * use.total / fullest.available)}), shorter sequences, or fewer layers"
    )


def _fullness(memory: Memory) -> float:
    return memory.use.total / memory.available
