"""`disagmoe bench overlap`: the split against expert parallelism, on hosts with a real network.

All systems run the same model code, kernels, transport and steps on the same hosts; each is tuned
at the rate at which it is measured, and then they take turns.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from disagmoe.bench.cores import kept_to
from disagmoe.bench.hosts import BURST_BYTES, HostNetwork, host_network
from disagmoe.bench.limits import Load, floor_s, lower_bound_s, pauses, rate_mbit_for
from disagmoe.bench.measured import size_setting
from disagmoe.bench.raynodes import Node, ray_nodes
from disagmoe.bench.rig import Rig, rig
from disagmoe.bench.rounds import take_turns
from disagmoe.bench.sample import Sample, is_pinned, load_of, medians, observe
from disagmoe.bench.scenarios import EP_1F1B, Scenario, System
from disagmoe.bench.text import prepare_text
from disagmoe.bench.tuned import Tuned, tuned_by_a_step
from disagmoe.cluster.nodes import NODE_RESOURCES
from disagmoe.config.load import load_run_config, override
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.schedule.layout import Side

Say = Callable[[str], None]

HOSTS = 2
_LEAST_MBIT = 10.0
"""What Ray's own messages and the calls of the driver need to be nothing beside the run's."""
_NEAR = 0.01
"""How near the exposed share of plain expert parallelism must come to the one asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One system at one rate."""

    system: System
    tuned: Tuned
    samples: tuple[Sample, ...]
    """One per round."""
    load: Load
    floor_s: float
    """Compute plus bytes over rate, or the larger of the two; see limits.py."""
    lower_bound_s: float
    """The floor with fill and drain."""

    @property
    def step_s(self) -> float:
        """Median over the rounds."""
        return statistics.median(sample.step_s for sample in self.samples)

    @property
    def exposed_share(self) -> float:
        """Share of the step in which workers wait for the network, by mean over hosts."""
        return statistics.median(exposed_share(sample) for sample in self.samples)

    @property
    def shares(self) -> list[dict[str, float]]:
        """What became of each host's time, by medians over the rounds."""
        by_host = zip(*(sample.shares for sample in self.samples), strict=True)
        return [medians(shares) for shares in by_host]

    @property
    def share_of_bound(self) -> float:
        """Lower bound over step, 1 at best. The busier side computes the same seconds in both, so
        this is also its share of the step over the share that the bound allows."""
        return self.lower_bound_s / self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All systems at one rate of one scenario."""

    scenario: Scenario
    rate_mbit: float
    multiple: float
    """Of the rate that the scenario asks for."""
    systems: Mapping[str, Measured]
    pinned: bool
    """Whether every worker could run on its host's core only."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Hosts, nodes and workers, up for the whole bench."""

    network: HostNetwork
    nodes: Sequence[Node]
    rigs: Mapping[str, Rig]
    data: str

    def conditions(self, scenario: Scenario) -> None:
        """Give every host its share of its core."""
        for node in self.nodes:
            last = node is self.nodes[-1]
            node.group.limit(scenario.slow_host_cores if last else None)

    def step(self, system: str) -> Sample:
        """Do one step of `system`."""
        return observe(self.rigs[system], self.network, self.nodes)


@contextmanager
def stage(systems: Sequence[System], example: Path, folder: Path) -> Iterator[Stage]:
    """Build everything that scenarios share; `example` is any run config, `folder` takes files.

    Raises:
        PlacementError: this machine cannot be several hosts.
    """
    with ExitStack() as stack:
        data = prepare_text(folder)
        base = load_run_config(example, [f'data.paths=["{data}"]'])
        network, nodes = stack.enter_context(hosts_up(len(systems)))
        rigs = stack.enter_context(rigs_of(systems, base, network, folder))
        yield Stage(network, nodes, rigs, data)


@contextmanager
def hosts_up(systems: int) -> Iterator[tuple[HostNetwork, list[Node]]]:
    """Build hosts with a Ray node on each, for the workers of so many systems at once.

    Raises PlacementError when this machine cannot be several hosts.
    """
    with (
        host_network(HOSTS) as network,
        ray_nodes(network.hosts, _resources(network, systems)) as nodes,
        # the driver lives on the first host, and takes its time from it
        kept_to({nodes[0].core}),
    ):
        yield network, nodes


@contextmanager
def rigs_of(
    systems: Sequence[System], base: RunConfig, network: HostNetwork, folder: Path
) -> Iterator[dict[str, Rig]]:
    """Reserve nodes for the workers of all `systems`, by their names."""
    with ExitStack() as stack:
        yield {
            system.name: stack.enter_context(
                rig(config_of(base, system, []), network.hosts[0].address, folder / system.name)
            )
            for system in systems
        }


def compare(
    scenario: Scenario, configs: Path, stage: Stage, rounds: int, say: Say
) -> Iterator[Comparison]:
    """Measure all systems at every rate of `scenario`. Raises WorkerError when a worker fails."""
    data = f'data.paths=["{stage.data}"]'
    base = load_run_config(configs / scenario.config, [data, *scenario.settings])
    stage.conditions(scenario)
    asked_mbit = _find_rate(scenario, base, stage, say)
    for multiple in scenario.rates:
        rate_mbit = asked_mbit * multiple
        stage.network.limit(rate_mbit)
        say(f"{scenario.name}: {scenario.about}; {rate_mbit:.0f} Mbit/s")
        tuned = {
            system.name: _tune(system, scenario, base, stage, say) for system in scenario.systems
        }
        turns = {system.name: partial(stage.step, system.name) for system in scenario.systems}
        samples = take_turns(turns, rounds)
        yield Comparison(
            scenario=scenario,
            rate_mbit=rate_mbit,
            multiple=multiple,
            systems={
                system.name: _measured(system, tuned[system.name], samples[system.name], rate_mbit)
                for system in scenario.systems
            },
            pinned=all(is_pinned(stage.nodes, stage.rigs[one.name]) for one in scenario.systems),
        )


def exposed_share(sample: Sample) -> float:
    """Share of a step in which workers wait for the network, by mean over hosts."""
    return statistics.fmean(share.exposed_communication for share in sample.shares)


def _resources(network: HostNetwork, systems: int) -> list[dict[str, float]]:
    """The last half of the hosts is for experts; all of them are for all colocated systems."""
    count, colocated = len(network.hosts), float(systems)
    sides = [Side.ATTENTION] * (count - count // 2) + [Side.EXPERT] * (count // 2)
    return [
        {NODE_RESOURCES[side]: 1.0, NODE_RESOURCES[Side.COLOCATED]: colocated} for side in sides
    ]


def config_of(base: RunConfig, system: System, sets: Sequence[str]) -> RunConfig:
    """Return `base` for `system` on all hosts, with `sets` applied and everything resolved."""
    return resolve(override(base, [*system.settings(HOSTS), *sets]), cuda=False)


def _find_rate(scenario: Scenario, base: RunConfig, stage: Stage, say: Say) -> float:
    """Return the rate at which plain expert parallelism waits as long as the scenario asks for."""
    stage.network.limit(None)
    plain = next(system for system in scenario.systems if system.name == EP_1F1B)
    # the fewest exchanges to wait for
    size = max(plain.micro_batch_sizes(HOSTS, scenario.micro_batches))
    stage.rigs[EP_1F1B].set_up(config_of(base, plain, [size_setting(size)]))
    stage.step(EP_1F1B)
    load = load_of([stage.step(EP_1F1B), stage.step(EP_1F1B)])
    rate_mbit = max(rate_mbit_for(load, scenario.exposed_share), _LEAST_MBIT)
    for _ in range(scenario.rate_trials):
        stage.network.limit(rate_mbit)
        share = statistics.fmean(exposed_share(stage.step(EP_1F1B)) for _ in range(2))
        say(f"{scenario.name}: at {rate_mbit:.0f} Mbit/s {EP_1F1B} waits {share:.0%} of its step")
        if abs(share - scenario.exposed_share) < _NEAR:
            break
        wanted = scenario.exposed_share / (1 - scenario.exposed_share)
        rate_mbit *= share / (1 - share) / wanted
    return max(rate_mbit, _LEAST_MBIT)


def _tune(system: System, scenario: Scenario, base: RunConfig, stage: Stage, say: Say) -> Tuned:
    """Set `system` up with the micro-batch size whose step takes least, each size planned on costs
    that were measured for it."""
    sizes = system.micro_batch_sizes(HOSTS, scenario.micro_batches)
    tried = [_plan(system, size, base, stage) for size in sizes]
    seconds = [_try(system, tuned, base, stage) for tuned in tried]
    best = tried[seconds.index(min(seconds))]
    if best is not tried[-1]:
        _try(system, best, base, stage)
    times = ", ".join(
        f"{tuned.micro_batch_size}: {tuned.compiled.timeline.makespan:.2f} s, took {step_s:.2f} s"
        for tuned, step_s in zip(tried, seconds, strict=True)
    )
    say(
        f"  {system.name}: planned step by micro-batch size {times}; goes on with "
        f"{best.micro_batch_size}, {best.compiled.timeline.in_flight} in flight"
    )
    return best


def _try(system: System, tuned: Tuned, base: RunConfig, stage: Stage) -> float:
    """Set `system` up as `tuned`, and return what its first step takes, in seconds."""
    stage.rigs[system.name].set_up(config_of(base, system, tuned.settings))
    return stage.step(system.name).step_s


def _plan(system: System, size: int, base: RunConfig, stage: Stage) -> Tuned:
    config = config_of(base, system, [size_setting(size)])
    return tuned_by_a_step(stage.rigs[system.name], config)


def _measured(
    system: System, tuned: Tuned, samples: Sequence[Sample], rate_mbit: float
) -> Measured:
    spec, exposed = tuned.compiled.programs.spec, tuned.compiled.timeline.exposed_exchanges
    free_bytes = float(pauses(spec, exposed=exposed) * BURST_BYTES)
    load = replace(load_of(samples), free_bytes=free_bytes)
    return Measured(
        system=system,
        tuned=tuned,
        samples=tuple(samples),
        load=load,
        floor_s=floor_s(load, rate_mbit, exposed=exposed),
        lower_bound_s=lower_bound_s(spec, tuned.costs, load, rate_mbit, exposed=exposed),
    )
