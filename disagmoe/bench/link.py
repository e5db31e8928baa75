"""Every edge of a run's channels, measured where the run would be placed, beside what its plan
takes them to carry."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from disagmoe.actors.assignments import assignments
from disagmoe.actors.failure import exit_detail
from disagmoe.actors.markers import Markers
from disagmoe.actors.messages import Place, RunPlan, WorkerAssignment
from disagmoe.actors.raycrew import spawn
from disagmoe.actors.settle import settle
from disagmoe.bench.linkworker import LinkWorker, link_specs
from disagmoe.cluster.ground import Ground, ground
from disagmoe.cluster.join import Target
from disagmoe.config.run import RunConfig
from disagmoe.costs.network import edge_bytes_per_s
from disagmoe.costs.scenario import Scenario, scenario_of
from disagmoe.errors import ConfigError, WorkerError
from disagmoe.runtime.edges import EdgeRate, rounds
from disagmoe.schedule.from_config import compile_for
from disagmoe.schedule.layout import Layout, Side, Worker
from disagmoe.transport.base import ChannelSpec
from disagmoe.transport.rendezvous import StoreServer

SLOW = 0.9
"""An edge is slower than assumed below this share of it; less is noise."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One edge, and what the plan says of it."""

    rate: EdgeRate
    source_host: str
    target_host: str
    near: bool
    """Whether both ends are on one node."""
    assumed_bytes_per_s: float | None
    """None where the plan knows no machine of this precision."""

    @property
    def is_slow(self) -> bool:
        """Whether the plan takes it to be faster."""
        assumed = self.assumed_bytes_per_s
        return assumed is not None and self.rate.bytes_per_s < SLOW * assumed

    def __str__(self) -> str:
        rate, near = self.rate, "one node" if self.near else "two nodes"
        return (
            f"{rate.source} on {self.source_host} to {rate.target} on {self.target_host} ({near})"
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **asdict(self.rate),
            "source_host": self.source_host,
            "target_host": self.target_host,
            "near": self.near,
            "assumed_bytes_per_s": self.assumed_bytes_per_s,
            "slow": self.is_slow,
        }


@dataclass(frozen=True, slots=True)
class Edges:
    """All that were measured, channel by channel."""

    transport: str
    edges: tuple[Edge, ...]

    @property
    def slow(self) -> tuple[Edge, ...]:
        """Those slower than the plan takes them to be."""
        return tuple(edge for edge in self.edges if edge.is_slow)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "ok": not self.slow,
            "transport": self.transport,
            "slow": len(self.slow),
            "edges": [edge.to_dict() for edge in self.edges],
        }

    def lines(self) -> Iterator[str]:
        """One line per channel, with its slowest edge; then a warning for each with slow ones."""
        channels: dict[str, list[Edge]] = {}
        for edge in self.edges:
            channels.setdefault(edge.rate.channel, []).append(edge)
        yield f"{'channel':<20} {'edges':>5} {'median':>12} {'slowest':>12} {'per message':>12}  of"
        for name, edges in channels.items():
            least = min(edges, key=lambda edge: edge.rate.bytes_per_s).rate
            median = statistics.median(edge.rate.bytes_per_s for edge in edges)
            message_s = statistics.median(edge.rate.message_s for edge in edges)
            yield (
                f"{name:<20} {len(edges):>5} {_rate(median):>12} {_rate(least.bytes_per_s):>12} "
                f"{1e6 * message_s:>9.0f} us  {least.source} to {least.target}"
            )
        for name, edges in channels.items():
            slow = [edge for edge in edges if edge.is_slow]
            if slow:
                worst = min(slow, key=lambda edge: edge.rate.bytes_per_s)
                assert worst.assumed_bytes_per_s is not None
                yield (
                    f"slower than the plan assumes: {len(slow)} of {len(edges)} edges of {name}, "
                    f"such as {worst}: {_rate(worst.rate.bytes_per_s)}, assumed "
                    f"{_rate(worst.assumed_bytes_per_s)}"
                )


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s"


def measure_edges(
    config: RunConfig, target: Target, folder: Path, large_bytes: int, say: Say
) -> Edges:
    """Place workers as those of the resolved `config`, and measure every edge of its channels that
    carries tensors. `folder` is for what they leave behind, nothing that others would need.

    Raises:
        ConfigError, PlacementError: see `ground` and `settle`.
        WorkerError: a worker fails or does not answer.
    """
    with ground(config, target, f"link-{folder.name}", say) as given:
        plan = _plan(config, given, folder)
        train, _ = compile_for(config)
        store = StoreServer(plan.host)
        told = assignments(plan, train, None, store.port)
        actors = spawn(config.parallel.worker_names, plan, lambda _: LinkWorker)
        try:
            told = _settled(plan, told, actors)
            specs = [one for one in link_specs(config, train.programs.spec) if not one.on_host]
            rates = list(_measured(config, actors, told, specs, large_bytes, say))
        finally:
            for actor in actors.values():
                ray.kill(actor)
            store.close()
    scenario = _scenario(config, train.programs.spec.layout)
    return Edges(config.cluster.transport, tuple(judged(rates, given.places, scenario)))


def _plan(config: RunConfig, given: Ground, folder: Path) -> RunPlan:
    return RunPlan(
        config=config,
        run_dir=str(folder),
        run_id=f"link-{folder.name}",
        host=given.host,
        places=given.places,
        markers=Markers(str(folder)),
        threads_per_worker=given.threads_per_worker,
        cpus_per_worker=given.cpus_per_worker,
        gpus_per_worker=given.gpus_per_worker,
    )


def _settled(
    plan: RunPlan, told: Sequence[WorkerAssignment], actors: Mapping[str, Any]
) -> list[WorkerAssignment]:
    """Return `told` with the network devices of each worker."""
    start_s = plan.config.cluster.start_timeout_s
    asked = {item.worker: actors[item.worker].locate.remote(item) for item in told}
    settled = settle(plan, answers(asked, start_s, "placement"), unseen=())
    return [replace(item, environment=settled.environment[item.worker]) for item in told]


def _measured(
    config: RunConfig,
    actors: Mapping[str, Any],
    told: Sequence[WorkerAssignment],
    specs: Sequence[ChannelSpec],
    large_bytes: int,
    say: Say,
) -> Iterator[EdgeRate]:
    cluster = config.cluster
    opening = {item.worker: actors[item.worker].open.remote(item, large_bytes) for item in told}
    answers(opening, cluster.start_timeout_s, "opening of channels")
    for spec in specs:
        count = len(rounds(spec))
        say(f"{spec.name}: {len(spec.sources)} to {len(spec.targets)} workers")
        asked = {name: actor.measure.remote(spec.name) for name, actor in actors.items()}
        within_s = (count + 1) * cluster.transfer_timeout_s
        for found in answers(asked, within_s, f"measurement of {spec.name}").values():
            yield from found


def answers(asked: Mapping[str, Any], within_s: float, what: str) -> dict[str, Any]:
    """Return what workers answer; the first that fails ends it.

    Raises:
        WorkerError: it names the worker, or those that have not answered `within_s`.
    """
    waiting = {reference: name for name, reference in asked.items()}
    found: dict[str, Any] = {}
    end_s = time.monotonic() + within_s
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=max(0.0, end_s - time.monotonic()))
        if not done:
            raise WorkerError(
                f"{', '.join(waiting.values())} did not finish the {what} within {within_s:g} s"
            )
        name = waiting.pop(done[0])
        try:
            found[name] = ray.get(done[0])
        except RayTaskError as error:
            raise WorkerError(f"{name} failed in the {what}: {error.cause}") from error
        except RayError as error:
            raise WorkerError(
                f"{name} has died in the {what}: {exit_detail(str(error))}"
            ) from error
    return {name: found[name] for name in asked}


def _scenario(config: RunConfig, layout: Layout) -> Scenario | None:
    try:
        return scenario_of(config, layout)
    except ConfigError:  # no rates of this precision
        return None


def judged(
    rates: Sequence[EdgeRate], places: Mapping[str, Place], scenario: Scenario | None
) -> Iterator[Edge]:
    """Put each rate beside what the plan takes an edge between these two workers to carry."""
    for rate in rates:
        source, target = places[rate.source], places[rate.target]
        near = source.node == target.node
        sides = [Worker.parse(name).group.side for name in (rate.source, rate.target)]
        yield Edge(
            rate=rate,
            source_host=source.host,
            target_host=target.host,
            near=near,
            assumed_bytes_per_s=None
            if scenario is None
            else edge_bytes_per_s(scenario, [side is Side.EXPERT for side in sides], near=near),
        )
