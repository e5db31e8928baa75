"""What compute and transfers of a step that go on beside each other take from each other.

Kernels of a transfer hold multiprocessors of a GPU. Where the processor that computes also drives
the network, as a CPU does, every message costs it time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from disagmoe.costs.calibration import NO_WORK
from disagmoe.costs.kernels import Machine
from disagmoe.costs.network import Seconds, Transfer, network_bytes_per_s
from disagmoe.costs.scenario import Scenario
from disagmoe.schedule.ir import GATEWAY_OPS, INSIDE_HOSTS, Op, SlotKind
from disagmoe.schedule.layout import Group, Side

_TO_EXPERTS = (SlotKind.ROWS, SlotKind.DOUTPUTS)
_FROM_EXPERTS = (SlotKind.OUTPUTS, SlotKind.DROWS)
_SENT_BY_EXPERTS = (*_FROM_EXPERTS, *INSIDE_HOSTS)
_SENT_TO_EXPERTS = (*_TO_EXPERTS, *INSIDE_HOSTS)
_OPS = {
    Side.ATTENTION: (Op.ATTN_FWD, Op.ATTN_BWD),
    Side.EXPERT: (Op.EXPERTS_FWD, Op.EXPERTS_BWD, *sorted(GATEWAY_OPS)),
}


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Ops and transfers of one layer, before anything slows them down."""

    ops: Mapping[Op, Seconds]
    transfers: Mapping[SlotKind, Transfer]


def stretches(scenario: Scenario, layers: Sequence[LayerTimes]) -> dict[Group, Seconds]:
    """Return how many times as long compute takes on the workers of each role."""
    layout, held = scenario.layout, _beside_kernels(scenario, layers)
    alone = {role: (held[role.side],) * layout.size(layout.host(role)) for role in layout.roles}
    if not scenario.overlaps or not _takes_work(scenario):
        return alone
    compute: dict[Group, Seconds] = {}
    work: dict[Group, Seconds] = {}
    for role, seconds in _computes(scenario, layers):
        _add(compute, layout.host(role), [held[role.side] * each for each in seconds])
    for role, seconds in _works(scenario, layers):
        _add(work, layout.host(role), seconds)
    for host in layout.all_groups:
        paces = scenario.paces(host)
        compute[host] = _paced(compute[host], paces)
        work[host] = _paced(work[host], paces)
    # all go at the pace of the slowest worker, or of the network; wherever in that time the work
    # for transfers falls, it takes its share of the compute that goes on then
    period = max(
        _busiest_s(layers) / layout.groups,
        *(sum(one) for host in compute for one in zip(compute[host], work[host], strict=True)),
    )
    return {
        role: tuple(
            factor * period / (period - taken)
            for factor, taken in zip(factors, work[layout.host(role)], strict=True)
        )
        for role, factors in alone.items()
    }


def waited_for(scenario: Scenario, number: int, layer: LayerTimes) -> LayerTimes:
    """Return layer `number` as a schedule sees it that waits for every transfer.

    Every transfer meets an idle network. Where all-to-alls begin as soon as their payload is there,
    that of the experts' backward goes on beside the gradients of their weights. No transfer is
    faster than the processors at its ends.
    """
    layout = scenario.layout
    if scenario.overlaps:
        return layer
    attention, experts = layout.host(layout.attention(number)), layout.host(layout.experts(number))
    hidden_s = 0.0
    if layout.colocated:
        weights = zip(layer.ops[Op.EXPERTS_WGRAD], scenario.paces(experts), strict=True)
        hidden_s = max(seconds * pace for seconds, pace in weights)
    burst_s = {
        role: machine.calibration.burst_bytes
        / network_bytes_per_s(machine, scenario, of_experts=role == experts)
        for role, machine in ((attention, scenario.attention), (experts, scenario.experts))
    }
    found = {}
    for kind, transfer in layer.transfers.items():
        source = experts if kind in _SENT_BY_EXPERTS else attention
        target = experts if kind in _SENT_TO_EXPERTS else attention
        sending = _paced(transfer.source_work, scenario.paces(source))
        receiving = _paced(transfer.target_work, scenario.paces(target))
        if source == target:
            sending = receiving = tuple(map(float.__add__, sending, receiving))
        if kind in INSIDE_HOSTS:
            near = _left(transfer.near_source, 0.0, sending, 0.0)
            found[kind] = replace(transfer, near_source=near)
            continue
        ahead_s = hidden_s if kind is SlotKind.DROWS else 0.0
        found[kind] = replace(
            transfer,
            out=_left(transfer.out, burst_s[source], sending, ahead_s),
            into=_left(transfer.into, burst_s[target], receiving, ahead_s),
        )
    return LayerTimes(layer.ops, found)


def _paced(seconds: Seconds, paces: Seconds) -> Seconds:
    return tuple(map(float.__mul__, seconds, paces))


def _left(ways: Seconds, burst_s: float, work: Seconds, ahead_s: float) -> Seconds:
    pairs = zip(ways, work, strict=True)
    return tuple(max(0.0, way - burst_s - ahead_s, least - ahead_s) for way, least in pairs)


def _takes_work(scenario: Scenario) -> bool:
    calibrations = (scenario.attention.calibration, scenario.experts.calibration)
    return any(one.send_work != NO_WORK or one.receive_work != NO_WORK for one in calibrations)


def _computes(scenario: Scenario, layers: Sequence[LayerTimes]) -> Iterator[tuple[Group, Seconds]]:
    """Seconds that the workers of a role compute for a micro-batch."""
    layout = scenario.layout
    for number, layer in enumerate(layers):
        for role in (layout.attention(number), layout.experts(number)):
            for op in _OPS[role.side]:
                if op in layer.ops:
                    yield role, layer.ops[op]


def _works(scenario: Scenario, layers: Sequence[LayerTimes]) -> Iterator[tuple[Group, Seconds]]:
    """Seconds that transfers take from them; what goes to the next layer, or comes from it, counts
    for the attention workers of this one."""
    layout = scenario.layout
    for number, layer in enumerate(layers):
        attention, experts = layout.attention(number), layout.experts(number)
        for kind, transfer in layer.transfers.items():
            yield experts if kind in _SENT_BY_EXPERTS else attention, transfer.source_work
            yield experts if kind in _SENT_TO_EXPERTS else attention, transfer.target_work


def _add(sums: dict[Group, Seconds], group: Group, seconds: Sequence[float]) -> None:
    before = sums.get(group, (0.0,) * len(seconds))
    sums[group] = tuple(map(float.__add__, before, seconds))


def _beside_kernels(scenario: Scenario, layers: Sequence[LayerTimes]) -> dict[Side, float]:
    """How many times as long compute takes on each side because kernels of transfers hold
    multiprocessors: s of S of them leave compute S / (S - s) as slow, while they run. How much of
    the time that is follows from how long the busiest way of a side is busy for each second of its
    compute.
    """
    held = scenario.hardware.communication_sms
    if not held or not scenario.overlaps:
        return dict.fromkeys((Side.ATTENTION, Side.EXPERT), 1.0)
    attention, experts = (
        sum(max(each.ops[op]) for each in layers for op in _OPS[side] if op in each.ops)
        for side in (Side.ATTENTION, Side.EXPERT)
    )
    if scenario.layout.colocated:
        attention = experts = attention + experts
    busy = _busiest_s(layers)
    return {
        Side.ATTENTION: _slowdown(scenario.attention, held, busy / attention),
        Side.EXPERT: _slowdown(scenario.experts, held, busy / experts),
    }


def _busiest_s(layers: Sequence[LayerTimes]) -> float:
    """Seconds that the busier direction of a side's way to the other is busy in all layers: rows
    and gradients of outputs go one way, outputs and gradients of rows the other."""
    return max(
        sum(each.transfers[kind].link.time for each in layers for kind in kinds)
        for kinds in (_TO_EXPERTS, _FROM_EXPERTS)
    )


def _slowdown(machine: Machine, held: int, share: float) -> float:
    there = machine.hardware.multiprocessors
    beside = there / (there - held) * machine.calibration.overlap_slowdown
    return 1 + (beside - 1) * min(1.0, share)
