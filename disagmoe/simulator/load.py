"""Durations as the event loop reads them: by place or wire of the chain, and by rank."""

from dataclasses import dataclass

from disagmoe.costs.network import Transfer
from disagmoe.costs.times import StepTimes
from disagmoe.schedule.chain import Place, Wire
from disagmoe.schedule.costs import Way
from disagmoe.schedule.ir import payload
from disagmoe.simulator.lowering import Lowered

Seconds = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """A wire: group numbers of its ends, and how long each rank's ways are busy with it."""

    source: int
    target: int
    near_source: Seconds
    out: Seconds
    into: Seconds
    near_target: Seconds
    parts: Seconds
    """Share of each sender in what a receiver gets."""
    latency: float
    twins: bool
    """Whether each sender has one receiver, of its own rank."""


@dataclass(frozen=True, slots=True)
class Load:
    """Durations of a step."""

    compute: tuple[Seconds, ...]
    """By place."""
    traffic: tuple[Traffic, ...]
    """By wire."""
    ranks: tuple[range, ...]
    """Actors of each group."""


def group_load(lowered: Lowered) -> Load:
    """One actor per group, at the pace that the chain has."""
    return Load(
        compute=tuple((place.time,) for place in lowered.chain),
        traffic=tuple(_one(wire) for _, wire in lowered.wires),
        ranks=(range(1),) * len(lowered.programs),
    )


def _one(wire: Wire) -> Traffic:
    times = {leg.way: leg.time for leg in wire.link.legs}
    near_source, out, into, near_target = ((times.get(way, 0.0),) for way in Way)
    return Traffic(
        source=wire.source,
        target=wire.target,
        near_source=near_source,
        out=out,
        into=into,
        near_target=near_target,
        parts=(1.0,),
        latency=wire.link.latency,
        twins=False,
    )


def worker_load(lowered: Lowered, times: StepTimes) -> Load:
    """One actor per worker of a ring."""
    layout = lowered.spec.layout
    return Load(
        compute=tuple(_by_worker(place, times) for place in lowered.chain),
        traffic=tuple(_by_workers(wire, times) for _, wire in lowered.wires),
        ranks=tuple(range(layout.size(group)) for group in layout.all_groups),
    )


def _by_worker(place: Place, times: StepTimes) -> Seconds:
    return times.compute_s(place.compute.op, place.compute.layer)


def _by_workers(wire: Wire, times: StepTimes) -> Traffic:
    key = wire.send.key
    transfer: Transfer = times.transfer(payload(key.channel), key.layer)
    return Traffic(
        source=wire.source,
        target=wire.target,
        near_source=transfer.near_source,
        out=transfer.out,
        into=transfer.into,
        near_target=transfer.near_target,
        parts=transfer.parts,
        latency=transfer.latency_s,
        twins=transfer.twins,
    )
