"""`disagmoe bench overlap`: the split against expert parallelism, on hosts with a real network.

All systems run the same model code, kernels, transport and steps on the same hosts; each is tuned
at the rate at which it is measured, and then they take turns.
"""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from disagmoe.bench.hosts import HostNetwork, host_network
from disagmoe.bench.limits import Load, lower_bound_s, rate_mbit_for
from disagmoe.bench.raynodes import Node, ray_nodes
from disagmoe.bench.rig import Rig, rig
from disagmoe.bench.sample import Sample, load_of, medians, observe
from disagmoe.bench.scenarios import EP_1F1B, SYSTEMS, Scenario, workers_of
from disagmoe.bench.text import prepare_text
from disagmoe.cluster.nodes import NODE_RESOURCES
from disagmoe.config.load import load_run_config, override
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.runtime.profile import Profile
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.layout import Side

Say = Callable[[str], None]

_HOSTS = 2
_RATE_TRIALS = 3
_LEAST_MBIT = 10.0
"""What Ray's own messages and the calls of the driver need to be nothing beside the run's."""
_NEAR = 0.02
"""How near the exposed share of plain expert parallelism must come to the one asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A system with its best settings at a rate."""

    micro_batch_size: int
    in_flight: int
    gap: float
    """Planned step over the lower bound of its schedule, both with measured costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One system at one rate."""

    system: str
    tuned: Tuned
    samples: tuple[Sample, ...]
    """One per round."""
    load: Load
    lower_bound_s: float

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
        """Lower bound over step, 1 at best: (compute / step) / (compute / bound), so also the share
        of its step that the busier side computes over the share that the bound allows."""
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
def stage(example: Path, folder: Path) -> Iterator[Stage]:
    """Build everything that scenarios share; `example` is any run config, `folder` takes files.

    Raises:
        PlacementError: this machine cannot be several hosts.
    """
    with ExitStack() as stack:
        data = prepare_text(folder)
        network = stack.enter_context(host_network(_HOSTS))
        nodes = stack.enter_context(ray_nodes(network.hosts, _resources(network)))
        stack.enter_context(_pinned_to(nodes[0].core))
        rigs = {
            system: stack.enter_context(
                rig(_config(example, data, system, []), network.hosts[0].address, folder / system)
            )
            for system in SYSTEMS
        }
        yield Stage(network, nodes, rigs, data)


def compare(
    scenario: Scenario, configs: Path, stage: Stage, rounds: int, say: Say
) -> Iterator[Comparison]:
    """Measure all systems at every rate of `scenario`. Raises WorkerError when a worker fails."""
    path = configs / scenario.config
    stage.conditions(scenario)
    asked_mbit = _find_rate(scenario, path, stage, say)
    for multiple in scenario.rates:
        rate_mbit = asked_mbit * multiple
        stage.network.limit(rate_mbit)
        say(f"{scenario.name}: {scenario.about}; {rate_mbit:.0f} Mbit/s")
        tuned = {system: _tune(system, scenario, path, stage, say) for system in SYSTEMS}
        samples = _take_turns(stage, rounds)
        yield Comparison(
            scenario=scenario,
            rate_mbit=rate_mbit,
            multiple=multiple,
            systems={
                system: _measured(system, tuned[system], samples[system], rate_mbit)
                for system in SYSTEMS
            },
            pinned=all(_is_pinned(stage, stage.rigs[system]) for system in SYSTEMS),
        )


def exposed_share(sample: Sample) -> float:
    """Share of a step in which workers wait for the network, by mean over hosts."""
    return statistics.fmean(share.exposed_communication for share in sample.shares)


def _resources(network: HostNetwork) -> list[dict[str, float]]:
    """The last half of the hosts is for experts; all of them are for both colocated systems."""
    count = len(network.hosts)
    sides = [Side.ATTENTION] * (count - count // 2) + [Side.EXPERT] * (count // 2)
    return [{NODE_RESOURCES[side]: 1.0, NODE_RESOURCES[Side.COLOCATED]: 2.0} for side in sides]


def _config(path: Path, data: str, system: str, sets: Sequence[str]) -> RunConfig:
    config = load_run_config(path, [f'data.paths=["{data}"]'])
    return resolve(override(config, [*workers_of(system, _HOSTS), *sets]), cuda=False)


def _find_rate(scenario: Scenario, path: Path, stage: Stage, say: Say) -> float:
    """Return the rate at which plain expert parallelism waits as long as the scenario asks for."""
    stage.network.limit(None)
    _tune(EP_1F1B, scenario, path, stage, say)
    load = load_of([stage.step(EP_1F1B)])
    rate_mbit = max(rate_mbit_for(load, scenario.exposed_share), _LEAST_MBIT)
    for _ in range(_RATE_TRIALS):
        if scenario.slow_host_cores is not None:
            break  # it waits for the slow host as well: compute and bytes have to do
        stage.network.limit(rate_mbit)
        share = exposed_share(stage.step(EP_1F1B))
        say(f"{scenario.name}: at {rate_mbit:.0f} Mbit/s {EP_1F1B} waits {share:.0%} of its step")
        if abs(share - scenario.exposed_share) < _NEAR:
            break
        wanted = scenario.exposed_share / (1 - scenario.exposed_share)
        rate_mbit *= share / (1 - share) / wanted
    return max(rate_mbit, _LEAST_MBIT)


def _tune(system: str, scenario: Scenario, path: Path, stage: Stage, say: Say) -> Tuned:
    """Set `system` up with the micro-batch size that is best, on costs that were measured."""
    tried = {}
    own_size = _config(path, stage.data, system, []).parallel.micro_batch_size
    for size in scenario.micro_batch_sizes or (own_size,):
        tried[size] = _profile(system, size, path, stage)
    size = min(tried, key=lambda size: tried[size][0])
    costs = tried[size][1].to_dict()
    sets = [_size(size), *(f"parallel.costs.{name}={cost!r}" for name, cost in costs.items())]
    config = _config(path, stage.data, system, sets)
    compiled = stage.rigs[system].set_up(config)
    stage.step(system)
    times = ", ".join(f"{size}: {step_s:.2f} s" for size, (step_s, _) in tried.items())
    say(
        f"  {system}: step by micro-batch size {times}; takes {size}, "
        f"{compiled.timeline.in_flight} in flight"
    )
    return Tuned(micro_batch_size=size, in_flight=compiled.timeline.in_flight, gap=compiled.gap)


def _profile(system: str, size: int, path: Path, stage: Stage) -> tuple[float, OpCosts]:
    """Return the time of the second step, and what its ops and transfers took."""
    traced = ["trace.first_step=1", "trace.steps=1"]
    stage.rigs[system].set_up(_config(path, stage.data, system, [_size(size), *traced]))
    stage.step(system)
    done = stage.rigs[system].step()
    traces = {name: report.trace for name, report in done.reports.items() if report.trace}
    return done.elapsed_s, OpCosts.from_seconds(Profile.of([traces]).costs({}))


def _size(size: int) -> str:
    return f"parallel.micro_batch_size={size}"


def _take_turns(stage: Stage, rounds: int) -> dict[str, list[Sample]]:
    """Do one step of each system per round, each round beginning with another one."""
    samples: dict[str, list[Sample]] = {system: [] for system in SYSTEMS}
    for at in range(rounds):
        first = at % len(SYSTEMS)
        for system in (*SYSTEMS[first:], *SYSTEMS[:first]):
            samples[system].append(stage.step(system))
    return samples


def _measured(system: str, tuned: Tuned, samples: Sequence[Sample], rate_mbit: float) -> Measured:
    load = load_of(samples)
    return Measured(
        system=system,
        tuned=tuned,
        samples=tuple(samples),
        load=load,
        lower_bound_s=lower_bound_s(system, load, rate_mbit),
    )


def _is_pinned(stage: Stage, rig: Rig) -> bool:
    core_of = {node.host.address: node.core for node in stage.nodes}
    return all(
        os.sched_getaffinity(pid) == {core_of[rig.hosts[worker]]}
        for worker, pid in rig.pids.items()
    )


@contextmanager
def _pinned_to(core: int) -> Iterator[None]:
    """The driver lives on the first host, and takes its time from it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
