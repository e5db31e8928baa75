"""A step of a run as a chart, from its trace: in the style in which its plan is drawn."""

from collections.abc import Iterator, Mapping, Sequence

from disagmoe.errors import ConfigError
from disagmoe.runtime.clock import Span, seconds_by_kind
from disagmoe.runtime.profile import Profile
from disagmoe.runtime.trace import WorkerTrace
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.bars import SECONDS, Bar, Chart, Shade, op_shade, transfer_shade
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.from_config import ProgramRequest
from disagmoe.schedule.ir import Op
from disagmoe.schedule.layout import Channel, Worker, ring_prefix

_SHADES = {
    Kind.SEND: Shade.SEND,
    Kind.RECV_WAIT: Shade.NETWORK,
    Kind.OPTIMIZER: Shade.OPTIMIZER,
    Kind.DATA: Shade.DATA,
}
"""All other kinds of time are waits for others, but for ops."""


def one_step(
    workers: Mapping[str, Sequence[WorkerTrace]], step: int | None
) -> dict[str, WorkerTrace]:
    """Return the trace of `step` by worker, or of the last one that is traced when None.

    Raises ConfigError for a step without a trace.
    """
    traced = sorted({trace.step for traces in workers.values() for trace in traces})
    if step is None:
        step = traced[-1] if traced else 0
    if step not in traced:
        there = ", ".join(map(str, traced)) or "none"
        raise ConfigError(f"step {step} is not traced; traced steps, counted from 0: {there}")
    return {
        worker: trace
        for worker, traces in workers.items()
        for trace in traces
        if trace.step == step
    }


def measured_chart(
    traces: Mapping[str, WorkerTrace], request: ProgramRequest, headline: str
) -> Chart:
    """Draw a step from the first moment in which a worker is not idle to the last.

    The lower bound is that of the ops and transfers of the step as long as they were, on a network
    that does nothing else; it counts neither data nor what ends a step.
    """
    start_s = min(_begin_s(trace.spans) for trace in traces.values())
    end_s = max(span.end_s for trace in traces.values() for span in trace.spans)
    costs = OpCosts.from_seconds(Profile.of([traces]).costs({}))
    bars: list[Bar] = []
    for worker, trace in traces.items():
        bars += _worker_bars(worker, trace.spans, start_s)
    transfers = list(_transfer_bars(traces, start_s))
    layout, used = request.spec.layout, {bar.lane for bar in transfers}
    channels = [
        f"{ring_prefix(ring)}{channel}"
        for ring in range(layout.rings)
        for channel in layout.channels()
    ]
    return Chart(
        headline=headline,
        makespan=end_s - start_s,
        bound=request.build(costs).bound,
        seconds={worker: seconds_by_kind(trace.spans) for worker, trace in traces.items()},
        unit=SECONDS,
        workers=tuple(traces),
        channels=tuple(channel for channel in channels if channel in used),
        bars=(*bars, *transfers),
    )


def _begin_s(spans: Sequence[Span]) -> float:
    return next((span.start_s for span in spans if span.kind is not Kind.IDLE), spans[-1].end_s)


def _worker_bars(worker: str, spans: Sequence[Span], start_s: float) -> Iterator[Bar]:
    for span in spans:
        shade, mb = _SHADES.get(span.kind, Shade.OTHERS), None
        if span.kind is Kind.COMPUTE:
            op, *_, micro_batch = span.label.split()
            shade, mb = op_shade(Op(op)), int(micro_batch.removeprefix("m"))
        begin, end = max(span.start_s - start_s, 0.0), span.end_s - start_s
        if begin < end:
            yield Bar(worker, begin, end, shade, mb)


def _transfer_bars(traces: Mapping[str, WorkerTrace], start_s: float) -> Iterator[Bar]:
    """Yield each transfer from when a receiver's part of it began to move to when the last had all;
    a transfer behind another one on its channel begins when that has ended."""
    found: dict[tuple[str, Channel, str], tuple[float, float]] = {}
    for worker, trace in traces.items():
        for hop in trace.hops:
            if not hop.sends:
                channel = Channel.parse(hop.channel)
                key = (f"{ring_prefix(Worker.parse(worker).ring)}{channel}", channel, hop.label)
                begin_s, end_s = found.get(key, (hop.start_s, hop.end_s))
                found[key] = (min(begin_s, hop.start_s), max(end_s, hop.end_s))
    free: dict[str, float] = {}
    order = sorted(found.items(), key=lambda item: item[1][1])
    for (lane, channel, label), (begin_s, end_s) in order:
        begin = max(begin_s - start_s, free.get(lane, 0.0))
        free[lane] = end_s - start_s
        if begin < free[lane]:
            mb = int(label.rpartition(" m")[2])
            yield Bar(lane, begin, free[lane], transfer_shade(channel), mb)
