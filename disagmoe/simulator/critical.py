"""The chain of ops and transfers that a step could not have been shorter than."""

from collections.abc import Mapping
from dataclasses import dataclass

from disagmoe.simulator.engine import Engine


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Seconds of a step by what stood in the way; they add up to it."""

    compute: Mapping[str, float]
    """By op and group, as in `attn_bwd on A0`."""
    network: Mapping[str, float]
    """By channel: from when a payload was handed over until it had come."""
    sends: float
    """Waiting until a payload had left, since its buffer was needed."""

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self.compute.values()) + sum(self.network.values()) + self.sends


def critical_path(engine: Engine) -> CriticalPath:
    """Walk back from the last op: to the transfer that it began with, or else to the op before."""
    width, chain = engine.width, engine.lowered.chain
    groups = engine.lowered.spec.layout.all_groups
    compute: dict[str, float] = {}
    network: dict[str, float] = {}
    sends = 0.0
    index = max(range(len(engine.op_end)), key=lambda at: (engine.op_end[at], at))
    while True:
        number, rank = divmod(index, width)
        place = chain[number % len(chain)]
        name = f"{place.compute.op.value} on {groups[place.group]}"
        start = engine.op_start[index]
        compute[name] = compute.get(name, 0.0) + engine.op_end[index] - start
        transfer = engine.op_cause[index]
        if transfer >= 0:
            sender = engine.last_sender[transfer * width + rank]
            posted = engine.posted[transfer * width + sender]
            _, wire = engine.lowered.wires[transfer % len(engine.lowered.wires)]
            channel = str(wire.send.key.channel)
            network[channel] = network.get(channel, 0.0) + start - posted
            number, rank, start = engine.posted_after[transfer * width + sender], sender, posted
        else:
            number = engine.op_before[index]
        if number < 0:
            return CriticalPath(compute, network, sends + start)
        index = number * width + rank
        sends += start - engine.op_end[index]
