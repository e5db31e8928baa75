"""The ops of one micro-batch, and what leads from one to the next."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from disagmoe.schedule.costs import Link, Times
from disagmoe.schedule.ir import (
    SUMMING_OPS,
    Compute,
    Op,
    ProgramSpec,
    TransferKey,
    owner,
    payload,
)
from disagmoe.schedule.layout import Group, Pass


@dataclass(frozen=True, slots=True)
class Send:
    """A transfer, and the op at its other end that reads what it carries."""

    key: TransferKey
    reader: Compute


@dataclass(frozen=True, slots=True)
class Step:
    """An op of a micro-batch's chain, the transfers that carry its results onward, and the op on
    the same group that takes what stays."""

    compute: Compute
    sends: tuple[Send, ...] = ()
    then: Compute | None = None


def chain(spec: ProgramSpec, mb: int) -> tuple[Step, ...]:
    """All ops of micro-batch `mb` in order, each with what it sends."""
    steps = _chain(spec, mb)
    return tuple(_through_gateways(steps, spec) if spec.layout.two_hop else steps)


def _chain(spec: ProgramSpec, mb: int) -> Iterator[Step]:
    layout = spec.layout
    layers = layout.layers
    head = Compute(Op.HEAD if spec.training else Op.HEAD_EVAL, None, mb)
    yield Step(Compute(Op.EMBED, None, mb), then=Compute(Op.ATTN_FWD, 0, mb))
    for layer in range(layers):
        experts = Compute(Op.EXPERTS_FWD, layer, mb)
        following = Compute(Op.ATTN_FWD, layer + 1, mb) if layer + 1 < layers else head
        sends = [Send(TransferKey(layout.dispatch(layer), layer, mb), experts)]
        if layout.direct_residual:
            sends.append(Send(TransferKey(layout.residual(layer), layer, mb), following))
        yield Step(Compute(Op.ATTN_FWD, layer, mb), tuple(sends))
        yield Step(experts, (Send(TransferKey(layout.combine(layer), layer, mb), following),))
    if not spec.training:
        yield Step(head)
        return
    yield Step(head, _gradients(spec, layers - 1, mb))
    last = Compute(Op.EMBED_BWD, None, mb)
    for layer in reversed(range(layers)):
        attention = Compute(Op.ATTN_BWD, layer, mb)
        rows = Send(TransferKey(layout.dispatch_grad(layer), layer, mb), attention)
        if spec.split_backward:
            weights = Compute(Op.EXPERTS_WGRAD, layer, mb)
            yield Step(Compute(Op.EXPERTS_DGRAD, layer, mb), (rows,), weights)
            yield Step(weights)
        else:
            yield Step(Compute(Op.EXPERTS_BWD, layer, mb), (rows,))
        if layer:
            yield Step(attention, _gradients(spec, layer - 1, mb))
        else:
            yield Step(attention, then=last)
    yield Step(last)


def _gradients(spec: ProgramSpec, layer: int, mb: int) -> tuple[Send, ...]:
    """What the head or the attention after `layer` sends back into it."""
    layout = spec.layout
    outputs = TransferKey(layout.combine_grad(layer), layer, mb)
    op = Op.EXPERTS_DGRAD if spec.split_backward else Op.EXPERTS_BWD
    sends = (Send(outputs, Compute(op, layer, mb)),)
    if not layout.direct_residual:
        return sends
    residual = TransferKey(layout.residual_grad(layer), layer, mb)
    return (*sends, Send(residual, Compute(Op.ATTN_BWD, layer, mb)))


_GATEWAYS = {
    Op.EXPERTS_FWD: (Op.FAN_OUT, Pass.FAN, Op.GATHER_ADD, Pass.SUM),
    Op.EXPERTS_BWD: (Op.FAN_OUT_BWD, Pass.FAN_GRAD, Op.GATHER_ADD_BWD, Pass.SUM_GRAD),
    Op.EXPERTS_DGRAD: (Op.FAN_OUT_BWD, Pass.FAN_GRAD, Op.GATHER_ADD_BWD, Pass.SUM_GRAD),
}
"""What stands before and after an op of experts where rows go in two hops."""


def _through_gateways(steps: Iterable[Step], spec: ProgramSpec) -> Iterator[Step]:
    """The pass that makes two hops of one: what crosses the network ends and begins at gateways,
    which fan rows out to the experts of their host and add up what these return."""
    for step in steps:
        gateways = _GATEWAYS.get(step.compute.op)
        if gateways is None:
            yield replace(step, sends=tuple(map(_to_gateway, step.sends)))
            continue
        fan_op, fan, add_op, add = gateways
        layer, mb = step.compute.layer, step.compute.mb
        assert layer is not None

        def inside(direction: Pass, reader: Compute, layer: int = layer, mb: int = mb) -> Send:
            return Send(TransferKey(spec.layout.inside(layer, direction), layer, mb), reader)

        added = Compute(add_op, layer, mb)
        yield Step(Compute(fan_op, layer, mb), (inside(fan, step.compute),))
        yield replace(step, sends=(inside(add, added),))
        yield Step(added, step.sends)


def _to_gateway(send: Send) -> Send:
    """Let a gateway read what was for experts."""
    gateways = _GATEWAYS.get(send.reader.op)
    if gateways is None:
        return send
    return Send(send.key, Compute(gateways[0], send.reader.layer, send.reader.mb))


@dataclass(frozen=True, slots=True)
class Wire:
    """A transfer of a chain in numbers: the groups of workers at its ends, how long it takes, and
    the place of its reader."""

    send: Send
    source: int
    target: int
    link: Link
    time: float
    """That of `link`."""
    reader: int
    out: int
    """Which way out it takes: that of its source to the network, numbered as the source is; or, for
    transfers inside hosts, the links there, which are numbered behind all those."""
    into: int
    """Which way in, in the same way."""


@dataclass(frozen=True, slots=True)
class Place:
    """An op of a chain in numbers, which are the same for every micro-batch."""

    compute: Compute
    """The op of micro-batch 0."""
    group: int
    """Which of `layout.all_groups` executes it."""
    time: float
    wires: tuple[Wire, ...]
    following: int | None
    """Place on the same group that waits for it."""
    inputs: int
    """Transfers and ops that it waits for, but for what `sums` adds."""
    sums: bool
    """Whether it also waits for the same op of the micro-batch before."""
    gathering: int | None = None
    """Place on the same group that waits for it in every micro-batch."""


def places(spec: ProgramSpec, costs: Times) -> tuple[Place, ...]:
    """The chain of a micro-batch in numbers; an op stands after all that it waits for."""
    layout = spec.layout
    steps = chain(spec, 0)
    place_of = {step.compute: place for place, step in enumerate(steps)}
    number = {group: at for at, group in enumerate(layout.all_groups)}

    def group_of(role: Group) -> int:
        return number[layout.host(role)]

    def wire(send: Send) -> Wire:
        channel = send.key.channel
        link = costs.link(payload(channel), send.key.layer)
        ends = group_of(channel.source), group_of(channel.target)
        behind = len(number) if channel.intra else 0
        ways = [end + behind for end in ends]
        return Wire(send, *ends, link, link.time, place_of[send.reader], *ways)

    inputs = [0] * len(steps)
    for step in steps:
        for reader in (*(send.reader for send in step.sends), *([step.then] if step.then else ())):
            inputs[place_of[reader]] += 1
    last = layout.layers - 1
    routed = place_of[Compute(Op.ATTN_FWD, last, 0)]
    gathered = place_of.get(Compute(Op.ATTN_BWD, last, 0)) if spec.gathers_step else None
    if gathered is not None:
        inputs[gathered] += spec.micro_batches
    return tuple(
        Place(
            compute=step.compute,
            group=group_of(owner(step.compute, layout)),
            time=costs.compute(step.compute.op, step.compute.layer),
            wires=tuple(map(wire, step.sends)),
            following=None if step.then is None else place_of[step.then],
            inputs=inputs[place],
            sums=step.compute.op in SUMMING_OPS,
            gathering=gathered if place == routed else None,
        )
        for place, step in enumerate(steps)
    )
