"""A plan as a chart, and what becomes of each group's time in it."""

from collections.abc import Iterator, Mapping, Sequence

from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.bars import COSTS, Bar, Chart, Shade, op_shade, transfer_shade
from disagmoe.schedule.chain import chain
from disagmoe.schedule.compile import Compiled
from disagmoe.schedule.ir import Compute, ProgramSpec
from disagmoe.schedule.layout import Group
from disagmoe.schedule.timeline import Hop, Span, Timeline

Interval = tuple[float, float]
_ROUNDING = 1e-9


def planned_chart(compiled: Compiled, headline: str) -> Chart:
    """Draw groups as they compute and wait, and transfers as they land at their receivers."""
    spec, timeline = compiled.programs.spec, compiled.timeline
    groups = spec.layout.all_groups
    waiting = exposed(spec, timeline)
    bars: list[Bar] = []
    for group, waits in waiting.items():
        spans = [span for span in timeline.spans if span.group == group]
        bars += _lane(str(group), spans, waits, timeline.makespan)
    transfers = [
        Bar(str(hop.key.channel), hop.landing, hop.end, transfer_shade(hop.key.channel), hop.key.mb)
        for hop in timeline.hops
        if hop.time
    ]
    used = {bar.lane for bar in transfers}
    return Chart(
        headline=headline,
        makespan=timeline.makespan,
        bound=compiled.bound,
        seconds=planned_seconds(spec, timeline, waiting),
        unit=COSTS,
        workers=tuple(map(str, groups)),
        channels=tuple(str(one) for one in spec.layout.channels() if str(one) in used),
        bars=(*bars, *transfers),
    )


def planned_seconds(
    spec: ProgramSpec, timeline: Timeline, waiting: Mapping[Group, Sequence[Interval]]
) -> dict[str, dict[str, float]]:
    """Return the time of each group by kind, of all its workers in one ring together; `waiting` is
    when each is `exposed`."""
    seconds: dict[str, dict[str, float]] = {}
    for group, waits in waiting.items():
        busy, exposed_time = timeline.busy(group), sum(end - start for start, end in waits)
        one = {
            str(Kind.COMPUTE): busy,
            str(Kind.RECV_WAIT): exposed_time,
            str(Kind.IDLE): max(timeline.makespan - busy - exposed_time, 0.0),
        }
        workers = spec.layout.size(group)
        seconds[str(group)] = {kind: workers * time for kind, time in one.items()}
    return seconds


def exposed(spec: ProgramSpec, timeline: Timeline) -> dict[Group, list[Interval]]:
    """Return when each group waits for the network: it computes nothing, and something that its
    next op reads is ready and has not arrived. Where all-to-alls are planned to be exposed, the
    next op waits for those of its group as well."""
    host = spec.layout.host
    inputs: dict[Compute, list[Hop]] = {}
    exchanges: dict[Group, list[Hop]] = {group: [] for group in spec.layout.all_groups}
    readers = {
        send.key: send.reader
        for mb in range(spec.micro_batches)
        for step in chain(spec, mb)
        for send in step.sends
    }
    for hop in timeline.hops:
        inputs.setdefault(readers[hop.key], []).append(hop)
        if timeline.exposed_exchanges and spec.layout.exchanges(hop.key.channel):
            exchanges[host(hop.key.channel.source)].append(hop)
    found: dict[Group, list[Interval]] = {}
    for group in spec.layout.all_groups:
        spans = [span for span in timeline.spans if span.group == group]
        found[group] = list(_waits(spans, inputs, exchanges[group]))
    return found


def _waits(
    spans: Sequence[Span], inputs: Mapping[Compute, Sequence[Hop]], exchanges: Sequence[Hop]
) -> Iterator[Interval]:
    """Yield the waits of a group in order, apart from each other."""
    at, free = 0, 0.0
    for span in spans:
        hops = list(inputs.get(span.compute, ()))
        while at < len(exchanges) and exchanges[at].ready < span.start:
            hops.append(exchanges[at])
            at += 1
        for hop in sorted(hops, key=lambda hop: hop.ready):
            start, end = max(hop.ready, free), min(hop.end, span.start)
            if start < end:
                yield start, end
                free = end
        free = span.end


def _lane(
    lane: str, spans: Sequence[Span], waits: Sequence[Interval], makespan: float
) -> Iterator[Bar]:
    """Yield what a group does from 0 to `makespan`, in order of time."""
    doing = [
        *(Bar(lane, s.start, s.end, op_shade(s.compute.op), s.compute.mb) for s in spans),
        *(Bar(lane, start, end, Shade.NETWORK) for start, end in waits),
    ]
    free = 0.0
    for bar in sorted(doing, key=lambda bar: bar.start):
        if bar.start - free > _ROUNDING * makespan:
            yield Bar(lane, free, bar.start, Shade.OTHERS)
        yield bar
        free = bar.end
    if makespan - free > _ROUNDING * makespan:
        yield Bar(lane, free, makespan, Shade.OTHERS)
