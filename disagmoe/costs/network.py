"""How long transfers keep each worker's ways busy.

Workers reach other hosts by network card and each other on one host by NVLink. Which way a row goes
follows from how hosts are filled and from `parallel.dedupe`:

- `none`, `rank`: straight to its expert worker;
- `node`: by network card once to every host where its token has an expert, to a gateway there; on
  from it by NVLink, which is a transfer of its own; sums come back the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from disagmoe.config.hosts import mixed_hosts, planned_per_host
from disagmoe.costs.kernels import Machine
from disagmoe.costs.routing import Loads, loads, popularity
from disagmoe.costs.scenario import Scenario
from disagmoe.costs.wire import payload_bytes
from disagmoe.schedule.costs import Leg, Link, Way
from disagmoe.schedule.ir import INSIDE_HOSTS, SlotKind

_TO_EXPERTS = frozenset({SlotKind.ROWS, SlotKind.DOUTPUTS})
_OF_DISPATCH = frozenset({SlotKind.ROWS, SlotKind.DROWS})
_RESIDUALS = frozenset({SlotKind.RESIDUAL, SlotKind.DRESIDUAL})

Seconds = tuple[float, ...]
"""By worker of a group, in rank order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A payload between two groups: how long each worker's ways are busy with it."""

    near_source: Seconds
    """NVLink of each sender."""
    out: Seconds
    """Network cards of each sender."""
    into: Seconds
    """Network cards of each receiver."""
    near_target: Seconds
    """NVLink of each receiver."""
    parts: Seconds
    """Share of each sender in what every receiver gets; they add up to 1."""
    source_work: Seconds
    target_work: Seconds
    """What it takes from the compute of each sender and of each receiver."""
    latency_s: float
    twins: bool = False
    """Whether each sender has one receiver instead, the one of its rank."""

    @property
    def link(self) -> Link:
        """The transfer at the pace of its slowest workers; ways without traffic are left out."""
        times = (
            (Way.NEAR_SOURCE, max(self.near_source)),
            (Way.OUT, max(self.out)),
            (Way.IN, max(self.into)),
            (Way.NEAR_TARGET, max(self.near_target)),
        )
        return Link(tuple(Leg(way, time) for way, time in times if time), self.latency_s)


@dataclass(frozen=True, slots=True)
class Routes:
    """Where the rows of a layer go."""

    workers: Loads
    """What a token means for each expert worker."""
    copies: tuple[float, ...]
    """Rows of a token that each expert worker gets."""
    hosts: float
    """Hosts of expert workers that a token reaches."""
    two_hop: bool

    @property
    def sent(self) -> float:
        """Rows of a token that leave its attention worker."""
        return self.hosts if self.two_hop else sum(self.copies)


def routes(scenario: Scenario, layer: int) -> Routes:
    """Return the routes of `layer` of the ring."""
    model, skew = scenario.model, scenario.hardware.expert_skew
    chances = popularity(model, skew, layer) if skew else None
    parts = scenario.expert_parts
    workers = loads(model, parts, chances)
    planned = planned_per_host(scenario.parallel, scenario.hardware)
    size = scenario.layout.workers_per_host or planned
    hosts = [sum(parts[at : at + size]) for at in range(0, len(parts), size)]
    copies = workers.choices if scenario.parallel.dedupe == "none" else workers.rows
    reached = sum(loads(model, hosts, chances).rows)
    return Routes(workers, copies, reached, scenario.layout.two_hop)


def home_tokens(scenario: Scenario, choices: float) -> float:
    """Tokens of a micro-batch whose first choice is on an expert worker that has `choices` of each
    token on average, where shared experts work on them; 0 where those are elsewhere."""
    if not scenario.shared_with_experts:
        return 0.0
    return sum(scenario.tokens) * choices / scenario.model.top_k


def transfer(scenario: Scenario, kind: SlotKind, route: Routes) -> Transfer:
    """Return how long `kind` takes on its way."""
    if kind in _RESIDUALS:
        return _residual(scenario, kind)
    if kind in INSIDE_HOSTS:
        return _inside(scenario, kind, route)
    tokens, size = scenario.tokens, payload_bytes(scenario, kind)
    per_worker = [
        copies * size.row + choices * size.choice
        for copies, choices in zip(route.copies, route.workers.choices, strict=True)
    ]
    attention = [count * sum(per_worker) for count in tokens]
    experts = [sum(tokens) * nbytes for nbytes in per_worker]
    ways = _ways(scenario, kind, route)
    # inside a colocated group senders and receivers have the same NVLinks, whose directions are
    # independent
    both_ends = 0.0 if scenario.layout.colocated else 1.0
    network = _network(
        scenario.attention, scenario, attention, ways.attention.network, of_experts=False
    )
    network_of_experts = _network(
        scenario.experts, scenario, experts, ways.experts.network, of_experts=True
    )
    latency_s = max(
        machine.calibration.latency_s for machine in (scenario.attention, scenario.experts)
    )
    to_experts = kind in _TO_EXPERTS
    of_attention, of_experts = (
        _work(machine, nbytes, peers - ways.own, shares.both, sends=sends)
        for machine, nbytes, peers, shares, sends in (
            (scenario.attention, attention, ways.experts_met, ways.attention, to_experts),
            (scenario.experts, experts, ways.attention_met, ways.experts, not to_experts),
        )
    )
    if to_experts:
        near = [both_ends * share for share in ways.experts.near]
        return Transfer(
            near_source=_nvlink(scenario.attention, attention, ways.attention.near),
            out=network,
            into=network_of_experts,
            near_target=_nvlink(scenario.experts, experts, near),
            parts=_shares(attention),
            source_work=of_attention,
            target_work=of_experts,
            latency_s=latency_s,
        )
    return Transfer(
        near_source=_nvlink(scenario.experts, experts, ways.experts.near),
        out=network_of_experts,
        into=network,
        near_target=_nvlink(
            scenario.attention, attention, [both_ends * share for share in ways.attention.near]
        ),
        parts=_shares(experts),
        source_work=of_experts,
        target_work=of_attention,
        latency_s=latency_s,
    )


def _residual(scenario: Scenario, kind: SlotKind) -> Transfer:
    row = payload_bytes(scenario, kind).row
    nbytes = [count * row for count in scenario.tokens]
    none = (0.0,) * len(nbytes)
    every = (1.0,) * len(nbytes)
    time = _network(scenario.attention, scenario, nbytes, every, of_experts=False)
    return Transfer(
        near_source=none,
        out=time,
        into=time,
        near_target=none,
        parts=every,
        source_work=_work(scenario.attention, nbytes, 1, every, sends=True),
        target_work=_work(scenario.attention, nbytes, 1, every, sends=False),
        latency_s=scenario.attention.calibration.latency_s,
        twins=True,
    )


def _inside(scenario: Scenario, kind: SlotKind, route: Routes) -> Transfer:
    """Between gateways and the experts of their host, by NVLink but for the gateway's own share. A
    host's gateways have equal parts of its rows, so that each sends as much as one of its workers
    is sent on average; every worker counts as one that is sent its own."""
    size, whole = payload_bytes(scenario, kind), sum(scenario.tokens)
    layout = scenario.layout
    elsewhere = 1 - 1 / min(layout.workers_per_host, layout.expert_workers)
    nbytes = [
        whole * (copies * size.row + choices * size.choice)
        for copies, choices in zip(route.copies, route.workers.choices, strict=True)
    ]
    none, shares = (0.0,) * len(nbytes), (elsewhere,) * len(nbytes)
    others = min(layout.workers_per_host, layout.expert_workers) - 1
    return Transfer(
        near_source=_nvlink(scenario.experts, nbytes, shares),
        out=none,
        into=none,
        near_target=none,
        parts=_shares(nbytes),
        source_work=_work(scenario.experts, nbytes, others, shares, sends=True),
        target_work=_work(scenario.experts, nbytes, others, shares, sends=False),
        latency_s=scenario.experts.calibration.latency_s,
    )


@dataclass(frozen=True, slots=True)
class _Shares:
    """Shares of a payload's bytes, counted by copies at expert workers, on the ways of each worker
    of a side; the rest stays on its worker."""

    network: Seconds
    near: Seconds

    @property
    def both(self) -> Seconds:
        """What leaves each worker, or comes to it."""
        return tuple(map(float.__add__, self.network, self.near))


@dataclass(frozen=True, slots=True)
class _Ways:
    attention: _Shares
    experts: _Shares
    own: int
    """Peers of a worker that are itself."""
    experts_met: int
    """Expert workers that an attention worker exchanges with; with two hops one on each host."""
    attention_met: int
    """Attention workers that an expert worker exchanges with."""


def _ways(scenario: Scenario, kind: SlotKind, route: Routes) -> _Ways:
    layout, per_host = scenario.layout, scenario.hardware.workers_per_node
    tokens, copies = scenario.tokens, route.copies
    own = int(layout.colocated and _one_pair(scenario, kind))
    if own:
        attention, experts = _around(copies, per_host), _around(tokens, per_host)
    else:
        apart, near = _distances(scenario, kind)
        attention, experts = (
            _Shares((apart,) * len(side), (near,) * len(side)) for side in (tokens, copies)
        )
    if not route.two_hop:
        return _Ways(attention, experts, own, len(copies), len(tokens))
    reached = route.hosts / sum(copies)
    # where both roles are on the same workers, each is its own gateway on its host
    near = 0.0 if layout.colocated else reached
    attention, experts = (
        _Shares(
            tuple(reached * share for share in side.network),
            tuple(near * share for share in side.near),
        )
        for side in (attention, experts)
    )
    hosts = -(-layout.expert_workers // layout.workers_per_host)
    served = -(-layout.attention_workers * hosts // layout.expert_workers)
    return _Ways(attention, experts, own, hosts, served)


def _around(amounts: Sequence[float], per_host: int) -> _Shares:
    """Where each worker's peers are when they are the workers of its own group, which have
    `amounts` of all that there is."""
    whole = sum(amounts)
    hosts = [sum(amounts[at : at + per_host]) for at in range(0, len(amounts), per_host)]
    there = [hosts[rank // per_host] for rank in range(len(amounts))]
    return _Shares(
        network=tuple(1 - host / whole for host in there),
        near=tuple((host - own) / whole for host, own in zip(there, amounts, strict=True)),
    )


def _distances(scenario: Scenario, kind: SlotKind) -> tuple[float, float]:
    """Return the shares of copies whose two workers are on different hosts, and on one host, where
    no worker has both ends. Workers are taken to fill their hosts."""
    if _one_pair(scenario, kind) and scenario.hardware.mixed_nodes:
        hosts = mixed_hosts(scenario.parallel, scenario.hardware)
        return (hosts - 1) / hosts, 1 / hosts
    return 1.0, 0.0


def _one_pair(scenario: Scenario, kind: SlotKind) -> bool:
    """Whether both ends of `kind` are of one pair of groups: outputs and their gradients go to and
    come from the next one, on hosts of its own."""
    return scenario.layout.groups == 1 or kind in _OF_DISPATCH


def network_bytes_per_s(machine: Machine, scenario: Scenario, *, of_experts: bool) -> float:
    """Achieved rate of a worker's network cards together, each way."""
    asked = scenario.hardware
    cards = asked.expert_nics if of_experts else asked.attention_nics
    rate = machine.hardware.nic_bytes_per_s * machine.calibration.nic_share
    return rate * cards * asked.nic_speed


def nvlink_bytes_per_s(machine: Machine) -> float:
    """Achieved rate of a worker's NVLink, each way."""
    return machine.hardware.nvlink_bytes_per_s * machine.calibration.nvlink_share


def edge_bytes_per_s(scenario: Scenario, of_experts: Sequence[bool], *, near: bool) -> float:
    """Achieved rate between two workers while nothing else moves, that of the slower end;
    `of_experts` says of each end whether experts are there, `near` whether both are on one host."""
    machines = [scenario.experts if experts else scenario.attention for experts in of_experts]
    if near:
        return min(nvlink_bytes_per_s(machine) for machine in machines)
    return min(
        network_bytes_per_s(machine, scenario, of_experts=experts)
        for machine, experts in zip(machines, of_experts, strict=True)
    )


def _network(
    machine: Machine,
    scenario: Scenario,
    nbytes: Sequence[float],
    shares: Sequence[float],
    *,
    of_experts: bool,
) -> Seconds:
    rate = network_bytes_per_s(machine, scenario, of_experts=of_experts)
    return tuple(count * share / rate for count, share in zip(nbytes, shares, strict=True))


def _nvlink(machine: Machine, nbytes: Sequence[float], shares: Sequence[float]) -> Seconds:
    rate = nvlink_bytes_per_s(machine)
    return tuple(count * share / rate for count, share in zip(nbytes, shares, strict=True))


def _work(
    machine: Machine, nbytes: Sequence[float], peers: int, shares: Sequence[float], *, sends: bool
) -> Seconds:
    """What the end of a transfer with `peers` others takes from its workers' compute; `shares` of
    their bytes pass other workers."""
    calibration = machine.calibration
    work = calibration.send_work if sends else calibration.receive_work
    return tuple(work(peers, count * share) for count, share in zip(nbytes, shares, strict=True))


def _shares(nbytes: Sequence[float]) -> Seconds:
    whole = sum(nbytes)
    return tuple(count / whole for count in nbytes)
