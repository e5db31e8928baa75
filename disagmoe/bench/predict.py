"""`disagmoe bench predict`: simulated steps against measured ones, on hosts with a real network.

The machine is calibrated first, at a rate that no case has. Every case is then simulated, each
system with its best settings by the simulation, and only after that trained, with the programs that
were simulated.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from disagmoe.bench.measured import cost_settings, size_setting
from disagmoe.bench.overlap import HOSTS, Say, Stage, config_of, hosts_up, rigs_of
from disagmoe.bench.predict_machine import LINK_MBIT, hosts_machine, last_host_pace, with_ops
from disagmoe.bench.rounds import take_turns
from disagmoe.bench.sample import Sample
from disagmoe.bench.scenarios import AF_PIPE, HEADLINE, SCENARIOS, UNEQUAL, Scenario, System
from disagmoe.bench.text import prepare_text
from disagmoe.bench.tuned import DEEP
from disagmoe.config.load import load_run_config, override
from disagmoe.config.run import RunConfig
from disagmoe.costs.measured import write_machine
from disagmoe.costs.memory import memory_use
from disagmoe.costs.scenario import scenario_of
from disagmoe.costs.times import StepTimes
from disagmoe.schedule.compile import Compiled
from disagmoe.schedule.from_config import programs_for
from disagmoe.simulator.invariants import compute_work
from disagmoe.simulator.simulate import simulate_compiled
from disagmoe.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """A scenario at a rate."""

    scenario: Scenario
    rate_mbit: float

    @property
    def name(self) -> str:
        """Both, in words."""
        return f"{self.scenario.name} at {self.rate_mbit:.0f} Mbit/s"


RATES_MBIT: Mapping[str, tuple[float, ...]] = {
    HEADLINE: (64.0, 130.0, 1000.0),
    "fine_grained": (67.0,),
    "long": (54.0,),
    UNEQUAL: (311.0,),
}
"""About those that `bench overlap` comes to, and a fast one. Fixed, so that they are known before
anything is measured."""
_QUICK_RATES_MBIT: Mapping[str, tuple[float, ...]] = {HEADLINE: (64.0, 1000.0), UNEQUAL: (311.0,)}
_QUICK_BATCH = 12
"""A multiple of all sizes of micro-batches: simulations take every one to be whole."""


def conditions(*, quick: bool) -> list[Conditions]:
    """Return what is predicted and measured; `quick` leaves some out and has smaller batches."""
    rates = _QUICK_RATES_MBIT if quick else RATES_MBIT
    small = (f"train.global_batch_size={_QUICK_BATCH}",)
    return [
        Conditions(
            scenario=replace(one, settings=one.settings + small) if quick else one, rate_mbit=rate
        )
        for one in SCENARIOS
        for rate in rates.get(one.name, ())
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A system as it is simulated."""

    system: System
    settings: tuple[str, ...]
    """Its part of a run config."""
    step_s: float
    ops_s: tuple[float, ...]
    """Seconds that each host computes."""
    memory_bytes: Mapping[str, float]
    """By worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A prediction, and what came of it."""

    conditions: Conditions
    predicted: Prediction
    samples: tuple[Sample, ...]
    """One per round."""
    memory_bytes: Mapping[str, int]
    """Largest memory of each worker's process."""

    @property
    def step_s(self) -> float:
        """Median over the rounds."""
        return statistics.median(sample.step_s for sample in self.samples)

    @property
    def error(self) -> float:
        """Predicted over measured step, less 1."""
        return self.predicted.step_s / self.step_s - 1

    @property
    def memory_errors(self) -> list[float]:
        """Predicted over measured memory, less 1, of each worker."""
        predicted = self.predicted.memory_bytes
        return [predicted[name] / seen - 1 for name, seen in self.memory_bytes.items()]


def predict(
    every: Sequence[Conditions], configs: Path, rounds: int, folder: Path, say: Say
) -> Iterator[Case]:
    """Calibrate, then predict and measure all systems under each of `every`.

    Raises:
        PlacementError: this machine cannot be several hosts.
        WorkerError: a worker fails.
    """
    data = prepare_text(folder)
    most = max(len(one.scenario.systems) for one in every)
    with hosts_up(most) as (network, nodes):
        bases = {one.name: _base(one, configs, data) for one in every}
        machine = hosts_machine(network, nodes, list(bases.values()), say)
        for number, one in enumerate(every):
            place = folder / f"case-{number}"
            with rigs_of(one.scenario.systems, bases[one.name], network, place) as rigs:
                stage = Stage(network, nodes, rigs, data)
                file = place / "machine.json"
                # a virtual machine has its faster and its slower minutes
                write_machine(file, with_ops(machine, one.scenario, bases[one.name], stage))
                base = override(bases[one.name], _hardware(one, file))
                pace = last_host_pace(one.scenario, nodes)
                predictions = [_predict(each, one, base, pace) for each in one.scenario.systems]
                for case in _measure(one, base, predictions, stage, rounds):
                    say(_line(case))
                    yield case


def _line(case: Case) -> str:
    memory = ", ".join(
        f"{name} {format_bytes(case.predicted.memory_bytes[name])} of {format_bytes(seen)}"
        for name, seen in case.memory_bytes.items()
    )
    return (
        f"{case.conditions.name}: {case.predicted.system.name} predicted "
        f"{case.predicted.step_s:.2f} s, took {case.step_s:.2f} s ({case.error:+.1%}); memory "
        f"{memory}"
    )


def _base(one: Conditions, configs: Path, data: str) -> RunConfig:
    file = configs / one.scenario.config
    return load_run_config(file, [f'data.paths=["{data}"]', *one.scenario.settings])


def _hardware(one: Conditions, file: Path) -> list[str]:
    """Settings of the simulation that all systems share."""
    return [
        f'hardware.attention_machine="{file}"',
        "hardware.workers_per_node=1",
        f"hardware.nic_speed={one.rate_mbit / LINK_MBIT!r}",
    ]


def _predict(system: System, one: Conditions, base: RunConfig, pace: float) -> Prediction:
    """The fastest of the micro-batch sizes and depths that `bench overlap` tries, by simulation;
    the last host takes `pace` times as long as the others."""
    slow = _slow_worker(system, pace)
    tried = []
    for size in system.micro_batch_sizes(HOSTS, one.scenario.micro_batches):
        own = [*slow, size_setting(size)]
        request = programs_for(config_of(base, system, own))
        count = request.spec.micro_batches
        for depth in sorted({request.in_flight, min(DEEP, count), count}):
            if depth > 1 and config_of(base, system, own).parallel.one_by_one:
                continue
            tried.append(_simulated(system, base, [*own, f"parallel.in_flight={depth}"]))
    return min(tried, key=lambda found: found.step_s)


def _slow_worker(system: System, pace: float) -> list[str]:
    if pace == 1.0:
        return []
    name = "F0.0" if system.schedule == AF_PIPE else f"C0.{HOSTS - 1}"
    return [f"hardware.slow_worker={name}", f"hardware.slow_factor={pace!r}"]


def _simulated(system: System, base: RunConfig, settings: Sequence[str]) -> Prediction:
    config = config_of(base, system, settings)
    request = programs_for(config)
    scenario = scenario_of(config, request.spec.layout)
    times = StepTimes(scenario)
    costs = times.op_costs()
    compiled: Compiled = request.build(costs)
    result = simulate_compiled(compiled, times, config.train.global_batch_size)
    programs = compiled.programs
    return Prediction(
        system=system,
        settings=(*settings, *cost_settings(costs)),
        step_s=result.step_s,
        ops_s=tuple(
            compute_work(result.engine, actor)
            for actors in result.engine.actors
            for actor in (actors * HOSTS if scenario.layout.colocated else actors)[:HOSTS]
        ),
        memory_bytes={
            str(worker): memory_use(scenario, worker, programs.part(worker.group)).expected
            for worker in request.spec.layout.workers
        },
    )


def _measure(
    one: Conditions,
    base: RunConfig,
    predictions: Sequence[Prediction],
    stage: Stage,
    rounds: int,
) -> Iterator[Case]:
    """Train what was predicted; the systems take turns, after a step of each to warm up."""
    stage.conditions(one.scenario)
    stage.network.limit(one.rate_mbit)
    names = [each.system.name for each in predictions]
    for each in predictions:
        name = each.system.name
        stage.rigs[name].set_up(config_of(base, each.system, each.settings))
        stage.step(name)
    samples = take_turns({name: partial(stage.step, name) for name in names}, rounds)
    for each in predictions:
        taken = samples[each.system.name]
        yield Case(
            conditions=one,
            predicted=each,
            samples=tuple(taken),
            memory_bytes=taken[-1].memory_bytes,
        )
