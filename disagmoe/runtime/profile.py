"""Costs of ops and transfers, measured from the traces of a few steps."""

import statistics
from collections.abc import Iterable, Mapping

from disagmoe.runtime.clock import Kind
from disagmoe.runtime.trace import Hop, WorkerTrace
from disagmoe.schedule.ir import COMPUTE_OPS, Op, payload
from disagmoe.schedule.layout import Channel

_OPS = frozenset(str(op) for op in COMPUTE_OPS - {Op.REDUCE_COUNTS})


def measured_costs(steps: Iterable[Mapping[str, WorkerTrace]]) -> dict[str, float]:
    """Return seconds by the names of `OpCosts`, from traces by worker of one or more steps.

    An op costs the median of its spans on its slowest worker, since a group goes at the pace of its
    slowest member. A transfer costs the median over the slowest receiver of the time from when both
    ends had posted it until it had arrived. What the traces do not hold is left out.
    """
    ops: dict[str, dict[str, list[float]]] = {}
    payloads: dict[str, dict[str, list[float]]] = {}
    for step in steps:
        sent = {
            (hop.channel, hop.label): hop.start_s
            for trace in step.values()
            for hop in trace.hops
            if hop.sends
        }
        for worker, trace in step.items():
            for span in trace.spans:
                op = span.label.partition(" ")[0]
                if span.kind is Kind.COMPUTE and op in _OPS:
                    durations = ops.setdefault(op, {}).setdefault(worker, [])
                    durations.append(span.end_s - span.start_s)
            for hop in trace.hops:
                if not hop.sends:
                    durations = payloads.setdefault(_payload(hop), {}).setdefault(worker, [])
                    durations.append(_moving_s(hop, sent))
    return {name: _slowest(by_worker) for name, by_worker in (ops | payloads).items()}


def _payload(hop: Hop) -> str:
    return str(payload(Channel.parse(hop.channel)))


def _moving_s(hop: Hop, sent: Mapping[tuple[str, str], float]) -> float:
    """Seconds from the later post of both ends to the arrival; an all-to-all has one post."""
    posted_s = max(hop.start_s, sent.get((hop.channel, hop.label), hop.start_s))
    return max(hop.end_s - posted_s, 0.0)


def _slowest(durations: Mapping[str, list[float]]) -> float:
    return max(statistics.median(values) for values in durations.values())
