"""How short a step can be, from what a system computes and what it sends."""

from dataclasses import dataclass

from disagmoe.bench.scenarios import EP_1F1B
from disagmoe.units import MBIT


@dataclass(frozen=True, slots=True)
class Load:
    """What one step takes from the hosts and from their links."""

    compute_s: tuple[float, ...]
    """Seconds that each host computes."""
    link_bytes: float
    """The most that a link carries in one direction."""


def wire_s(load: Load, rate_mbit: float) -> float:
    """Seconds that the busiest direction of a link needs."""
    return load.link_bytes / (rate_mbit * MBIT)


def lower_bound_s(system: str, load: Load, rate_mbit: float) -> float:
    """Return a time that no step of `system` can beat.

    Plain expert parallelism does one thing at a time: its slowest host's compute, then bytes over
    rate. The others can at best keep the busiest host, or the busiest link, busy all the time.
    """
    compute_s, transfer_s = max(load.compute_s), wire_s(load, rate_mbit)
    return compute_s + transfer_s if system == EP_1F1B else max(compute_s, transfer_s)


def rate_mbit_for(load: Load, exposed_share: float) -> float:
    """Return the rate at which plain expert parallelism waits for `exposed_share` of its step."""
    transfer_s = max(load.compute_s) * exposed_share / (1 - exposed_share)
    return load.link_bytes / MBIT / transfer_s
