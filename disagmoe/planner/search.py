"""The search: estimates of all divisions, then simulations of the best of each layout.

A step with many micro-batches is simulated with some of them; each further one adds what those
took on average after the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from disagmoe.config.run import RunConfig
from disagmoe.costs.scenario import scenario_of
from disagmoe.costs.times import StepTimes
from disagmoe.errors import ConfigError
from disagmoe.planner.candidates import divisions, two_kinds
from disagmoe.planner.roofline import Estimate, estimates
from disagmoe.schedule.bounds import lower_bound
from disagmoe.schedule.builders.policies import backward_first
from disagmoe.schedule.compile import Compiled, programs_of
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.timeline import simulate as list_schedule
from disagmoe.simulator.simulate import Result, simulate_compiled
from disagmoe.units import format_bytes

SIMULATED = {"af_pipe": 6, "ep_overlap": 3, "ep_1f1b": 2}
"""Divisions of each layout that are simulated, in the order of their estimates."""
TRIES = 3
"""How many times as many may be tried where some turn out not to fit."""
OPERATIONS = 40_000
"""Ops of a simulation, about; and never fewer micro-batches than twice those in flight."""


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
    two_kinds: bool
    """Both sides have machines of their own, so that no colocated layout was looked at."""

    @property
    def best(self) -> Choice:
        """The choice."""
        return self.choices[0]


def search(config: RunConfig) -> Plan:
    """Divide the workers of `config` anew, for the most tokens per second.

    Raises:
        ConfigError: nothing fits into memory.
    """
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
    closest: Choice | None = None
    for schedule, wanted in SIMULATED.items():
        ranked = [one for one in fitting if one.division.schedule == schedule]
        kept: list[Choice] = []
        for one in _unlike(ranked)[: TRIES * wanted]:
            if len(kept) == wanted or (kept and one.step_s > min(c.step_s for c in kept)):
                break
            choice = try_out(config, one)
            if choice.result.fits:
                kept.append(choice)
            elif closest is None or _excess(choice) < _excess(closest):
                closest = choice
        choices += kept
    if not choices:
        raise ConfigError(_nothing_fits(config, every, closest))
    return Plan(
        choices=tuple(sorted(choices, key=lambda choice: choice.step_s)),
        divisions=len(found),
        estimates=len(every),
        fitting=len(fitting),
        two_kinds=two_kinds(config),
    )


def _unlike(ranked: Sequence[Estimate]) -> list[Estimate]:
    """The best three depths in flight of each division: deep ones tie."""
    seen: dict[object, int] = {}
    kept = []
    for one in ranked:
        seen[one.division] = seen.get(one.division, 0) + 1
        if seen[one.division] <= TRIES:
            kept.append(one)
    return kept


def try_out(config: RunConfig, estimate: Estimate) -> Choice:
    """Simulate `estimate` with the paper's order of ops, backward first."""
    run = estimate.division.of(config, estimate.in_flight)
    whole = run.micro_batches
    per_micro_batch = 8 * run.model.moe_layers
    count = min(whole, max(2 * estimate.in_flight, OPERATIONS // per_micro_batch, 2))
    parallel = run.parallel
    batch = count * parallel.micro_batch_size * parallel.rings if count < whole else None
    part = run if batch is None else _with_batch(run, batch)
    request = programs_for(part)
    times = StepTimes(scenario_of(part, request.spec.layout))
    exposed = parallel.schedule == "ep_1f1b"
    costs = times.op_costs()
    timeline = list_schedule(
        request.spec, costs, backward_first, request.in_flight, exposed_exchanges=exposed
    )
    bound = lower_bound(request.spec, costs, timeline.in_flight, exposed_exchanges=exposed)
    compiled = Compiled(programs_of(timeline, request.spec), timeline, bound)
    result = simulate_compiled(compiled, times, part.train.global_batch_size)
    first = min(result.makespan_s, result.engine.op_end[_last(result)])
    each = (result.makespan_s - first) / max(1, count - 1)
    step_s = result.step_s + (whole - count) * each
    tokens = config.train.global_batch_size * config.train.sequence_length
    return Choice(
        estimate=estimate,
        config=run,
        result=result,
        micro_batches=whole,
        simulated=count,
        step_s=step_s,
        tokens_per_s=tokens / step_s,
    )


def _last(result: Result) -> int:
    """The end of the first micro-batch."""
    engine = result.engine
    return (len(engine.lowered.chain) - 1) * engine.width


def _with_batch(run: RunConfig, batch: int) -> RunConfig:
    return run.model_copy(
        update={"train": run.train.model_copy(update={"global_batch_size": batch})}
    )


def _excess(choice: Choice) -> float:
    return max(one.use.total / one.available for one in choice.result.memory)


def _nothing_fits(config: RunConfig, every: Sequence[Estimate], closest: Choice | None) -> str:
    """What is missing in the nearest of all divisions."""
    if closest is None:
        nearest = min(every, key=lambda one: one.need)
        closest = try_out(config, nearest)
    fullest = max(closest.result.memory, key=lambda one: one.use.total / one.available)
    use, workers = fullest.use, config.parallel.workers
    states = use.weights + use.gradients + use.optimizer
    ratio = use.total / fullest.available
    enough = next(
        (count for count in (2**power for power in range(24)) if count >= workers * ratio),
        workers,
    )
    return (
        f"no division of {workers} workers holds this model; the nearest, "
        f"{closest.estimate.division.summary} with {closest.estimate.in_flight} micro-batches in "
        f"flight, needs {format_bytes(use.total)} on {fullest.worker} of "
        f"{format_bytes(fullest.available)}: {format_bytes(states)} of weights, gradients and "
        f"optimizer, {format_bytes(use.slots)} of activations, {format_bytes(use.headroom)} in "
        f"case all tokens come to it, and "
        f"{format_bytes(use.total - states - use.slots - use.headroom)} more; about {enough} "
        "workers would hold it, or shorter sequences, or fewer layers"
    )
