"""`disagmoe bench two-hop`: a row per expert worker against a row per host, over a slow link.

One host has an attention worker, the other one two expert workers. Both ways of sending run the
same model on the same hosts, each tuned at the rate at which it is measured, and take turns.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from disagmoe.bench.cores import kept_to
from disagmoe.bench.hosts import HostNetwork, host_network
from disagmoe.bench.limits import rate_mbit_for
from disagmoe.bench.raynodes import Node, ray_nodes
from disagmoe.bench.rig import Rig, rig
from disagmoe.bench.rounds import take_turns
from disagmoe.bench.sample import Sample, is_pinned, load_of, observe
from disagmoe.bench.text import prepare_text
from disagmoe.bench.tuned import Tuned, tuned_by_a_step
from disagmoe.cluster.nodes import NODE_RESOURCES
from disagmoe.config.load import load_run_config, override
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.costs.scenario import scenario_of
from disagmoe.costs.wire import payload_bytes
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.ir import SlotKind
from disagmoe.schedule.layout import HOPS, Side

Say = Callable[[str], None]

EXPERT_WORKERS = 2
"""All on one host."""
RANK, NODE = "rank", "node"
WAYS = {
    RANK: ['parallel.dedupe="rank"'],
    NODE: ['parallel.dedupe="node"', f"parallel.workers_per_host={EXPERT_WORKERS}"],
}
"""What rows are sent to, and its part of a run config."""
LINK_BOUND, COMPUTE_BOUND = 1.0, 6.0
"""Rates to measure, as multiples of the one at which rows per worker take the link for
`_LINK_SHARE` of link and compute together."""
_LINK_SHARE = 0.75
_LEAST_MBIT = 10.0
"""What Ray's own messages and the calls of the driver need to be nothing beside the run's."""
_CROSSING = (SlotKind.ROWS, SlotKind.OUTPUTS, SlotKind.DOUTPUTS, SlotKind.DROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One way of sending at one rate."""

    config: RunConfig
    tuned: Tuned
    samples: tuple[Sample, ...]
    """One per round."""

    @property
    def step_s(self) -> float:
        """Median over the rounds."""
        return statistics.median(sample.step_s for sample in self.samples)

    @property
    def link_bytes(self) -> float:
        """What the link has carried in a step, both directions, by the kernel's counters."""
        return statistics.median(
            sample.links[0].sent + sample.links[0].received for sample in self.samples
        )

    @property
    def payload_bytes(self) -> float:
        """What workers have sent on the channels that cross the network."""
        return statistics.median(sample.hops[HOPS[0]].nbytes for sample in self.samples)

    @property
    def exact_bytes(self) -> float:
        """What the routing decisions ask for, in messages without padding."""
        rows = statistics.median(sample.hops[HOPS[0]].exact_rows for sample in self.samples)
        return exact_bytes(self.config, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both ways at one rate."""

    rate_mbit: float
    multiple: float
    ways: Mapping[str, Measured]
    pinned: bool
    """Whether every worker could run on its host's core only."""


def exact_bytes(config: RunConfig, rows: float) -> float:
    """Return the bytes of all payloads of a step that cross the network, of which `rows` rows and
    all choices go each way, forward and backward. For layouts of one group."""
    scenario = scenario_of(config, programs_for(config).spec.layout)
    train, model = config.train, config.model
    tokens = train.global_batch_size * train.sequence_length
    choices = tokens * model.moe_layers * model.top_k
    sizes = [payload_bytes(scenario, kind) for kind in _CROSSING]
    return sum(rows * size.row + choices * size.choice for size in sizes)


def compare(
    config: Path, rounds: int, multiples: Sequence[float], folder: Path, say: Say
) -> Iterator[Comparison]:
    """Measure both ways at every rate; `folder` takes files.

    Raises:
        PlacementError: this machine cannot be several hosts.
        ConfigError: `config` is no run of one group with two expert workers.
        WorkerError: a worker fails.
    """
    base = load_run_config(config, [f'data.paths=["{prepare_text(folder)}"]', *_SHAPE])
    configs = {way: _config_of(base, sets) for way, sets in WAYS.items()}
    with _up(configs, folder) as stage:
        first_mbit = _link_bound_mbit(stage, configs[RANK])
        for multiple in multiples:
            rate_mbit = max(first_mbit * multiple, _LEAST_MBIT)
            stage.network.limit(rate_mbit)
            say(f"{rate_mbit:.0f} Mbit/s")
            tuned = {way: _tune(stage.rigs[way], one, way, say) for way, one in configs.items()}
            samples = take_turns({way: partial(stage.step, way) for way in WAYS}, rounds)
            yield Comparison(
                rate_mbit=rate_mbit,
                multiple=multiple,
                ways={
                    way: Measured(
                        config=configs[way], tuned=tuned[way], samples=tuple(samples[way])
                    )
                    for way in WAYS
                },
                pinned=all(is_pinned(stage.nodes, one) for one in stage.rigs.values()),
            )


_SHAPE = (
    'parallel.schedule="af_pipe"',
    "parallel.groups=1",
    "parallel.rings=1",
    "parallel.attention_workers=1",
    f"parallel.expert_workers={EXPERT_WORKERS}",
)
"""One worker on the first host, the others on the second."""


def _config_of(base: RunConfig, sets: Sequence[str]) -> RunConfig:
    return resolve(override(base, sets), cuda=False)


@dataclass(frozen=True, slots=True)
class _Stage:
    """Hosts, nodes and workers, up for the whole bench."""

    network: HostNetwork
    nodes: Sequence[Node]
    rigs: Mapping[str, Rig]

    def step(self, way: str) -> Sample:
        return observe(self.rigs[way], self.network, self.nodes)


@contextmanager
def _up(configs: Mapping[str, RunConfig], folder: Path) -> Iterator[_Stage]:
    resources = [{NODE_RESOURCES[side]: float(len(configs))} for side in _SIDES]
    with (
        host_network(len(_SIDES)) as network,
        ray_nodes(network.hosts, resources) as nodes,
        # the driver lives on the first host, and takes its time from it
        kept_to({nodes[0].core}),
        ExitStack() as stack,
    ):
        address = network.hosts[0].address
        rigs = {
            way: stack.enter_context(
                rig(config, address, folder / way, workers_per_node=EXPERT_WORKERS)
            )
            for way, config in configs.items()
        }
        yield _Stage(network, nodes, rigs)


_SIDES = (Side.ATTENTION, Side.EXPERT)
"""Of the hosts."""


def _link_bound_mbit(stage: _Stage, config: RunConfig) -> float:
    """The rate of the link-bound range."""
    stage.network.limit(None)
    stage.rigs[RANK].set_up(config)
    stage.step(RANK)  # the first one is slower for reasons of its own
    load = load_of([stage.step(RANK), stage.step(RANK)])
    return rate_mbit_for(load, _LINK_SHARE)


def _tune(own: Rig, config: RunConfig, way: str, say: Say) -> Tuned:
    """Set up with the best depth in flight, and do a step that is not counted."""
    tuned = tuned_by_a_step(own, config)
    own.set_up(override(config, tuned.settings))
    own.step()
    timeline = tuned.compiled.timeline
    say(f"  {way}: planned step {timeline.makespan:.2f} s with {timeline.in_flight} in flight")
    return tuned
