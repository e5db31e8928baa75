"""How long ops and transfers took, from the traces of a few steps."""

import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from disagmoe.runtime.trace import Hop, WorkerTrace
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.ir import COMPUTE_OPS, EXPERT_OPS, GATEWAY_OPS, Op, SlotKind, payload
from disagmoe.schedule.layout import Channel, Worker

ATTENTION_OPS = frozenset(
    str(op) for op in COMPUTE_OPS - EXPERT_OPS - GATEWAY_OPS - {Op.REDUCE_COUNTS, Op.HEAD_EVAL}
)
"""Ops of a step whose time grows with the sequences of a worker."""
_EXPERT_OPS = frozenset(map(str, EXPERT_OPS | GATEWAY_OPS))
_OPS = ATTENTION_OPS | _EXPERT_OPS


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds by the names of `OpCosts` and by worker, and what expert workers were given."""

    seconds: Mapping[str, Mapping[str, list[float]]]
    row_bytes: Mapping[str, int]
    """Bytes of rows that each expert worker has received in all steps."""

    @classmethod
    def of(cls, steps: Iterable[Mapping[str, WorkerTrace]]) -> "Profile":
        """Read the traces by worker of one or more steps."""
        seconds: dict[str, dict[str, list[float]]] = {}
        row_bytes: dict[str, int] = {}
        for step in steps:
            sent = _sent_s(step)
            for worker, trace in step.items():
                for span in trace.spans:
                    op = span.label.partition(" ")[0]
                    if span.kind is Kind.COMPUTE and op in _OPS:
                        times = seconds.setdefault(op, {}).setdefault(worker, [])
                        times.append(span.end_s - span.start_s)
                for hop in trace.hops:
                    if hop.sends:
                        continue
                    kind = payload(Channel.parse(hop.channel))
                    times = seconds.setdefault(str(kind), {}).setdefault(worker, [])
                    posted_s = max(hop.start_s, sent.get(_transfer(worker, hop), hop.start_s))
                    times.append(max(hop.end_s - posted_s, 0.0))
                    if kind is SlotKind.ROWS:
                        row_bytes[worker] = row_bytes.get(worker, 0) + hop.nbytes
        return cls(seconds, row_bytes)

    def costs(self, attention_pace: Mapping[str, float]) -> dict[str, float]:
        """Return seconds by the names of `OpCosts`, without those that were not measured.

        An op costs the median of its spans on its slowest worker, since a group goes at the pace of
        its slowest member. A transfer costs the median over the slowest receiver of the time from
        when both ends had posted it until it had arrived. `attention_pace` says how many times as
        many sequences workers will have as they had; all others keep theirs.
        """
        return {
            name: max(
                statistics.median(times)
                * (attention_pace.get(worker, 1.0) if name in ATTENTION_OPS else 1.0)
                for worker, times in by_worker.items()
            )
            for name, by_worker in self.seconds.items()
        }

    def attention_s(self) -> dict[str, float]:
        """Return how long each worker computed in its attention role, by its medians."""
        return self._busy_s(ATTENTION_OPS)

    def experts_s(self) -> dict[str, float]:
        """Return how long each worker computed in its expert role, by its medians."""
        return self._busy_s(_EXPERT_OPS)

    def _busy_s(self, ops: Collection[str]) -> dict[str, float]:
        busy: dict[str, float] = {}
        for op in sorted(ops & self.seconds.keys()):
            for worker, times in self.seconds[op].items():
                busy[worker] = busy.get(worker, 0.0) + statistics.median(times) * len(times)
        return busy


_Transfer = tuple[int, str, str]
"""A transfer of a step: ring, channel, label."""


def _transfer(worker: str, hop: Hop) -> _Transfer:
    return Worker.parse(worker).ring, hop.channel, hop.label


def _sent_s(step: Mapping[str, WorkerTrace]) -> dict[_Transfer, float]:
    """When the last sender of each transfer had posted it; an all-to-all has no senders."""
    sent: dict[_Transfer, float] = {}
    for worker, trace in step.items():
        for hop in trace.hops:
            if hop.sends:
                key = _transfer(worker, hop)
                sent[key] = max(hop.start_s, sent.get(key, hop.start_s))
    return sent
