"""The search: estimates of all divisions, then simulations of the best of each layout."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from disagmoe.config.run import RunConfig
from disagmoe.errors import ConfigError
from disagmoe.planner.candidates import Division, divisions, two_kinds
from disagmoe.planner.roofline import Estimate, estimates
from disagmoe.planner.trial import Trial, trial
from disagmoe.simulator.simulate import Memory, Result
from disagmoe.units import format_bytes

SIMULATED = {"af_pipe": 4, "ep_overlap": 2, "ep_1f1b": 2}
"""Divisions of each layout that are simulated, in the order of their estimates."""
TRIES = 3
"""How many times as many may be tried where some turn out not to fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A division that was simulated."""

    estimate: Estimate
    config: RunConfig
    """It can be trained."""
    result: Result
    """Of the micro-batches that were simulated."""
    micro_batches: int
    simulated: int
    step_s: float
    tokens_per_s: float

    @property
    def schedule(self) -> str:
        """Its layout."""
        return self.config.parallel.schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The choice, and what it was chosen from."""

    choices: tuple[Choice, ...]
    """Those that fit, best first."""
    divisions: int
    estimates: int
    fitting: int
    """Estimates that fit into memory."""
    other_way: Choice | None
    """The best division with rows sent the other way, once to each worker or to each host; None
    where there is no other way, or it does not fit."""
    two_kinds: bool
    """Both sides have machines of their own, so that no colocated layout was looked at."""

    @property
    def best(self) -> Choice:
        """The choice."""
        return self.choices[0]


def search(config: RunConfig) -> Plan:
    """Divide the workers of `config` anew, for the most tokens per second.

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
    every = [one for division in found for one in estimates(config, division)]
    fitting = sorted((one for one in every if one.need <= 1), key=lambda one: one.step_s)
    choices: list[Choice] = []
    refused: list[Attempt] = []
    for schedule, wanted in SIMULATED.items():
        ranked = [one for one in fitting if one.division.schedule == schedule]
        kept: list[Choice] = []
        for one in _unlike(ranked)[: TRIES * wanted]:
            if len(kept) == wanted or (kept and one.step_s > min(c.step_s for c in kept)):
                break
            attempt = attempt_at(config, one)
            if attempt.trial.fits:
                kept.append(attempt.simulate())
            else:
                refused.append(attempt)
        choices += kept
    if not choices:
        refused = refused or [attempt_at(config, min(every, key=lambda one: one.need))]
        raise ConfigError(_nothing_fits(config, refused))
    choices.sort(key=lambda choice: choice.step_s)
    return Plan(
        choices=tuple(choices),
        divisions=len(found),
        estimates=len(every),
        fitting=len(fitting),
        other_way=_other_way(config, choices, fitting),
        two_kinds=two_kinds(config),
    )


def _other_way(
    config: RunConfig, choices: Sequence[Choice], fitting: Sequence[Estimate]
) -> Choice | None:
    """The best of `choices` with rows sent the other way, at the depth that is best for it."""
    best = choices[0].estimate.division
    others = [one for one in fitting if _is_other_way(one.division, best)]
    simulated = [one for one in choices if _is_other_way(one.estimate.division, best)]
    if simulated or not others:
        return simulated[0] if simulated else None
    attempt = attempt_at(config, others[0])
    return attempt.simulate() if attempt.trial.fits else None


def _is_other_way(one: Division, other: Division) -> bool:
    alike = replace(one, dedupe=other.dedupe, recompute=other.recompute)
    return one.dedupe != other.dedupe and alike == other


def _unlike(ranked: Sequence[Estimate]) -> list[Estimate]:
    """The best three depths in flight of each division: deep ones tie."""
    seen: dict[object, int] = {}
    kept = []
    for one in ranked:
        seen[one.division] = seen.get(one.division, 0) + 1
        if seen[one.division] <= TRIES:
            kept.append(one)
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An estimate and its programs."""

    estimate: Estimate
    trial: Trial

    def simulate(self) -> Choice:
        """Run the programs' events."""
        config, train = self.trial.config, self.trial.config.train
        timed = self.trial.simulate()
        return Choice(
            estimate=self.estimate,
            config=config,
            result=timed.result,
            micro_batches=config.micro_batches,
            simulated=timed.simulated,
            step_s=timed.step_s,
            tokens_per_s=train.global_batch_size * train.sequence_length / timed.step_s,
        )


def attempt_at(config: RunConfig, estimate: Estimate) -> Attempt:
    """Compile `estimate`."""
    run = estimate.division.of(config, estimate.in_flight)
    return Attempt(estimate=estimate, trial=trial(run))


def _nothing_fits(config: RunConfig, refused: Sequence[Attempt]) -> str:
    """What is missing in the nearest of all divisions."""
    nearest = min(refused, key=lambda one: _fullness(one.trial.fullest))
    fullest = nearest.trial.fullest
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
