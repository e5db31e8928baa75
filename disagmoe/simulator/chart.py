"""A simulated step as a chart of groups and their ways."""

from disagmoe.schedule.bars import SECONDS, Bar, Chart, Shade, op_shade, transfer_shade
from disagmoe.simulator.engine import Engine
from disagmoe.simulator.simulate import Result


def chart_of(result: Result, headline: str) -> Chart:
    """Draw the first worker of each group as it computes and waits, and what each channel carries
    to the first worker of its receivers, from the first of it to the last."""
    engine = result.engine
    spec = engine.lowered.spec
    groups = [str(group) for group in spec.layout.all_groups]
    bars = [*_ops(engine, groups), *_waits(engine, groups)]
    channels, transfers = _transfers(engine)
    return Chart(
        headline=headline,
        makespan=result.makespan_s,
        bound=result.bound,
        seconds=result.seconds,
        unit=SECONDS,
        workers=tuple(groups),
        channels=channels,
        bars=(*sorted(bars, key=lambda bar: (bar.lane, bar.start)), *transfers),
    )


def _ops(engine: Engine, groups: list[str]) -> list[Bar]:
    bars = []
    length = len(engine.lowered.chain)
    for number in range(length * engine.lowered.spec.micro_batches):
        mb, at = divmod(number, length)
        place = engine.lowered.chain[at]
        start, end = engine.op_start[number * engine.width], engine.op_end[number * engine.width]
        if end > start:
            bars.append(Bar(groups[place.group], start, end, op_shade(place.compute.op), mb))
    return bars


def _waits(engine: Engine, groups: list[str]) -> list[Bar]:
    bars = []
    for actors in engine.actors:
        waits = list(actors[0].waits)
        for start, end in zip(waits[::2], waits[1::2], strict=True):
            bars.append(Bar(groups[actors[0].group], start, end, Shade.NETWORK))
    return bars


def _transfers(engine: Engine) -> tuple[tuple[str, ...], list[Bar]]:
    wires = engine.lowered.wires
    bars = []
    free: dict[str, float] = {}
    order = sorted(
        range(len(wires) * engine.lowered.spec.micro_batches),
        key=lambda number: (engine.landing[number * engine.width], number),
    )
    for number in order:
        mb, at = divmod(number, len(wires))
        channel = wires[at][1].send.key.channel
        lane, index = str(channel), number * engine.width
        latency = engine.load.traffic[at].latency
        start = max(engine.landing[index], free.get(lane, 0.0))
        end = engine.arrival[index] - latency
        if end > start:
            free[lane] = end
            bars.append(Bar(lane, start, end, transfer_shade(channel), mb))
    lanes = dict.fromkeys(str(one) for one in engine.lowered.spec.layout.channels())
    return tuple(lane for lane in lanes if lane in free), bars
