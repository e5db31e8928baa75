"""Instructions and programs: frozen values, of which a schedule is made.

A program belongs to a group; all workers of the group run it, each on its own rank's share.
README.md beside this file says what each instruction does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from disagmoe.errors import ScheduleError
from disagmoe.schedule.layout import Channel, Group, Layout, Pass, Side


class Op(StrEnum):
    """What an instruction does; the value is its name in the text form."""

    EMBED = "embed"
    ATTN_FWD = "attn_fwd"
    EXPERTS_FWD = "experts_fwd"
    HEAD = "head"
    HEAD_EVAL = "head_eval"
    EXPERTS_BWD = "experts_bwd"
    EXPERTS_DGRAD = "experts_dgrad"
    EXPERTS_WGRAD = "experts_wgrad"
    ATTN_BWD = "attn_bwd"
    EMBED_BWD = "embed_bwd"
    FAN_OUT = "fan_out"
    GATHER_ADD = "gather_add"
    FAN_OUT_BWD = "fan_out_bwd"
    GATHER_ADD_BWD = "gather_add_bwd"
    REDUCE_COUNTS = "reduce_counts"
    SEND_COUNTS = "send_counts"
    RECV_COUNTS = "recv_counts"
    POST_SEND = "post_send"
    POST_RECV = "post_recv"
    EXCHANGE_COUNTS = "exchange_counts"
    EXCHANGE = "exchange"
    WAIT = "wait"
    FREE = "free"
    REDUCE_GRADS = "reduce_grads"
    REDUCE_WORLD = "reduce_world"
    UPDATE = "update"


EXPERT_OPS = frozenset({Op.EXPERTS_FWD, Op.EXPERTS_BWD, Op.EXPERTS_DGRAD, Op.EXPERTS_WGRAD})
GATEWAY_OPS = frozenset({Op.FAN_OUT, Op.GATHER_ADD, Op.FAN_OUT_BWD, Op.GATHER_ADD_BWD})
"""Ops of expert workers between the two hops of a dispatch that crosses the network once per
host."""
LAYER_OPS = EXPERT_OPS | GATEWAY_OPS | {Op.ATTN_FWD, Op.ATTN_BWD, Op.REDUCE_COUNTS}
EDGE_OPS = frozenset({Op.EMBED, Op.HEAD, Op.HEAD_EVAL, Op.EMBED_BWD})
COMPUTE_OPS = LAYER_OPS | EDGE_OPS
STEP_OPS = (Op.REDUCE_GRADS, Op.REDUCE_WORLD, Op.UPDATE)
_GATEWAY_BACKWARD = frozenset({Op.FAN_OUT_BWD, Op.GATHER_ADD_BWD})
_EDGE_BACKWARD = frozenset({Op.HEAD, Op.ATTN_BWD, Op.EMBED_BWD})
BACKWARD_OPS = (EXPERT_OPS - {Op.EXPERTS_FWD}) | _EDGE_BACKWARD | _GATEWAY_BACKWARD
SUMMING_OPS = (BACKWARD_OPS - _GATEWAY_BACKWARD - {Op.EXPERTS_DGRAD}) | {Op.HEAD_EVAL}
"""Ops that add to a gradient or to the loss; each meets the micro-batches in ascending order, since
a sum of floats depends on its order."""
POST_OPS = frozenset({Op.POST_SEND, Op.POST_RECV, Op.EXCHANGE})
COUNT_OPS = frozenset({Op.SEND_COUNTS, Op.RECV_COUNTS, Op.EXCHANGE_COUNTS})
TRANSFER_OPS = POST_OPS | COUNT_OPS | {Op.WAIT}


class SlotKind(StrEnum):
    """What a slot holds; a payload has the same name at both ends of its channel, but for those
    between workers of one group."""

    HIDDEN = "hidden"
    ROWS = "rows"
    OUTPUTS = "outputs"
    RESIDUAL = "residual"
    SAVED = "saved"
    COUNTS = "counts"
    DOUTPUTS = "doutputs"
    DROWS = "drows"
    DSAVED = "dsaved"
    DRESIDUAL = "dresidual"
    DHIDDEN = "dhidden"
    ROUTES = "routes"
    """At a gateway: where rows have come from and gone to."""
    FAN_ROWS = "fan_rows"
    NEAR_ROWS = "near_rows"
    NEAR_OUTPUTS = "near_outputs"
    PART_OUTPUTS = "part_outputs"
    FAN_DOUTPUTS = "fan_doutputs"
    NEAR_DOUTPUTS = "near_doutputs"
    NEAR_DROWS = "near_drows"
    PART_DROWS = "part_drows"


class Slot(NamedTuple):
    """A buffer for one layer and micro-batch, written `A.rows L3 m0`. The side tells both ends of a
    payload apart where they are on the same worker. A tuple, since compiling makes millions."""

    side: Side
    kind: SlotKind
    layer: int
    mb: int

    def __str__(self) -> str:
        return f"{self.side}.{self.kind} L{self.layer} m{self.mb}"


@dataclass(frozen=True, slots=True)
class Compute:
    """Work on one micro-batch; `layer` is None exactly for embedding and head."""

    op: Op
    layer: int | None
    mb: int

    def __post_init__(self) -> None:
        if self.op not in COMPUTE_OPS:
            raise ScheduleError(f"{self.op} is no compute op")
        if (self.layer is None) != (self.op in EDGE_OPS):
            raise ScheduleError(f"{self.op} {'needs' if self.layer is None else 'has no'} layer")

    def __str__(self) -> str:
        layer = "" if self.layer is None else f" L{self.layer}"
        return f"{self.op}{layer} m{self.mb}"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One end of a transfer: which channel, and the layer and micro-batch that it carries."""

    op: Op
    channel: Channel
    layer: int
    mb: int

    def __post_init__(self) -> None:
        if self.op not in TRANSFER_OPS:
            raise ScheduleError(f"{self.op} is no transfer op")

    def __str__(self) -> str:
        return f"{self.op} {self.channel} L{self.layer} m{self.mb}"

    @property
    def key(self) -> "TransferKey":
        """The transfer that this is an end of."""
        return TransferKey(self.channel, self.layer, self.mb)


class TransferKey(NamedTuple):
    """A transfer as both ends know it."""

    channel: Channel
    layer: int
    mb: int

    def __str__(self) -> str:
        return f"{self.channel} L{self.layer} m{self.mb}"

    @property
    def sent(self) -> Slot:
        """The payload at the sender."""
        return Slot(self.channel.source.side, payload(self.channel), self.layer, self.mb)

    @property
    def received(self) -> Slot:
        """The payload at the receiver."""
        kind = payload(self.channel)
        return Slot(self.channel.target.side, ARRIVES_AS.get(kind, kind), self.layer, self.mb)


@dataclass(frozen=True, slots=True)
class Free:
    """Release a slot."""

    slot: Slot

    @property
    def op(self) -> Op:
        """Always `free`."""
        return Op.FREE

    def __str__(self) -> str:
        return f"{Op.FREE} {self.slot}"


@dataclass(frozen=True, slots=True)
class StepEnd:
    """One of the instructions that end a training step."""

    op: Op

    def __post_init__(self) -> None:
        if self.op not in STEP_OPS:
            raise ScheduleError(f"{self.op} does not end a step")

    def __str__(self) -> str:
        return str(self.op)


Instruction = Compute | Transfer | Free | StepEnd

_PAYLOADS = {
    (Side.ATTENTION, Side.EXPERT, Pass.ACT): SlotKind.ROWS,
    (Side.EXPERT, Side.ATTENTION, Pass.ACT): SlotKind.OUTPUTS,
    (Side.ATTENTION, Side.ATTENTION, Pass.ACT): SlotKind.RESIDUAL,
    (Side.ATTENTION, Side.EXPERT, Pass.GRAD): SlotKind.DOUTPUTS,
    (Side.EXPERT, Side.ATTENTION, Pass.GRAD): SlotKind.DROWS,
    (Side.ATTENTION, Side.ATTENTION, Pass.GRAD): SlotKind.DRESIDUAL,
    (Side.EXPERT, Side.EXPERT, Pass.FAN): SlotKind.FAN_ROWS,
    (Side.EXPERT, Side.EXPERT, Pass.SUM): SlotKind.NEAR_OUTPUTS,
    (Side.EXPERT, Side.EXPERT, Pass.FAN_GRAD): SlotKind.FAN_DOUTPUTS,
    (Side.EXPERT, Side.EXPERT, Pass.SUM_GRAD): SlotKind.NEAR_DROWS,
}

ARRIVES_AS = {
    SlotKind.FAN_ROWS: SlotKind.NEAR_ROWS,
    SlotKind.NEAR_OUTPUTS: SlotKind.PART_OUTPUTS,
    SlotKind.FAN_DOUTPUTS: SlotKind.NEAR_DOUTPUTS,
    SlotKind.NEAR_DROWS: SlotKind.PART_DROWS,
}
"""Payloads whose two ends are both on the expert side of a worker, so that names must tell them
apart."""
INSIDE_HOSTS = tuple(ARRIVES_AS)
"""Payloads that do not cross the network, as their senders name them."""


def payload(channel: Channel) -> SlotKind:
    """What `channel` carries, as its sender names it. Raises ScheduleError for a channel that does
    not exist."""
    kind = _PAYLOADS.get((channel.source.side, channel.target.side, channel.direction))
    if kind is None:
        if channel.intra:
            raise ScheduleError(f"{channel}: only expert workers have channels inside a host")
        raise ScheduleError(f"{channel}: expert groups do not talk to each other")
    return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec:
    """What a set of programs is compiled for."""

    layout: Layout
    micro_batches: int
    training: bool = True
    reduce_counts: bool = False
    """Whether expert counts are summed over an attention group (aux loss of a micro-batch); an
    evaluation has no aux loss and sums none."""
    counts_of_step: bool = False
    """With `reduce_counts`: sums go over all rings, and the attention backward of a layer reads
    those of all micro-batches (aux loss of the whole step)."""
    split_backward: bool = False
    """Whether the experts' backward is two ops: gradients of the rows, which others wait for, and
    gradients of the parameters, which may come later."""

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise ScheduleError(f"{self.micro_batches} micro-batches; use 1 or more")
        if self.counts_of_step and not self.reduce_counts:
            raise ScheduleError("counts_of_step needs reduce_counts")

    @property
    def sums_counts(self) -> bool:
        """Whether the programs hold `reduce_counts`."""
        return self.reduce_counts and self.training

    @property
    def gathers_step(self) -> bool:
        """Whether no micro-batch goes back through the last layer before all have reached it."""
        return self.counts_of_step and self.training

    def counts_read_by(self, mb: int) -> range:
        """Micro-batches whose sums the attention backward of `mb` reads."""
        if not self.sums_counts:
            return range(0)
        return range(self.micro_batches) if self.counts_of_step else range(mb, mb + 1)

    def sends_counts(self, channel: Channel) -> bool:
        """Whether the receiver must be told the row counts of `channel` beforehand.

        Rows always, on each hop; outputs only when they arrive at another group than the one that
        sent the rows; gradients never, since both ends remember the forward counts.
        """
        kind = payload(channel)
        if kind in (SlotKind.ROWS, SlotKind.FAN_ROWS):
            return True
        return kind is SlotKind.OUTPUTS and self.layout.groups > 1


@dataclass(frozen=True, slots=True)
class Program:
    """The instructions of one group."""

    group: Group
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class GroupProgram:
    """What every worker of one group is given: its program, and what that is compiled for."""

    spec: ProgramSpec
    program: Program


@dataclass(frozen=True, slots=True)
class ProgramSet:
    """One program per group, in the order of `spec.layout.all_groups`."""

    spec: ProgramSpec
    programs: tuple[Program, ...]

    def of(self, group: Group) -> Program:
        """Program of `group`."""
        for program in self.programs:
            if program.group == group:
                return program
        raise ScheduleError(f"no program for {group}; there are {_names(self.programs)}")

    def part(self, group: Group) -> GroupProgram:
        """What the workers of `group` need of this set."""
        return GroupProgram(self.spec, self.of(group))


def _names(programs: Iterable[Program]) -> str:
    return ", ".join(str(program.group) for program in programs)


class Effects(NamedTuple):
    """Slots that an instruction reads and writes on its group."""

    reads: tuple[Slot, ...] = ()
    writes: tuple[Slot, ...] = ()


def effects(instruction: Instruction, group: Group, spec: ProgramSpec) -> Effects:
    """Slots that `instruction` touches on `group`; a `free` and a step end touch none.

    A receive writes its slot at the `wait`; a send reads its slot until the `wait`.
    """
    match instruction:
        case Compute():
            return _compute_effects(instruction, spec)
        case Transfer(op=op, channel=channel):
            layout, key = spec.layout, instruction.key
            sends = layout.host(channel.source) == group
            receives = layout.host(channel.target) == group and op is Op.WAIT
            return Effects((key.sent,) if sends else (), (key.received,) if receives else ())
        case Free() | StepEnd():
            return Effects()


def _compute_effects(compute: Compute, spec: ProgramSpec) -> Effects:
    layer = spec.layout.layers if compute.layer is None else compute.layer
    if compute.op in EXPERT_OPS:
        return _expert_effects(compute.op, layer, compute.mb, spec)
    if compute.op in GATEWAY_OPS:
        return _gateway_effects(compute.op, layer, compute.mb)
    if compute.op in BACKWARD_OPS:
        return _backward_effects(compute.op, layer, compute.mb, spec)
    return _forward_effects(compute.op, layer, compute.mb, spec)


def _expert_effects(op: Op, layer: int, mb: int, spec: ProgramSpec) -> Effects:
    def slot(kind: SlotKind) -> Slot:
        return Slot(Side.EXPERT, kind, layer, mb)

    kinds = expert_kinds(spec.layout)
    saved = (slot(SlotKind.SAVED),) if spec.training else ()
    gradients = (slot(kinds.doutputs), *saved)
    match op:
        case Op.EXPERTS_FWD:
            return Effects((slot(kinds.rows),), (slot(kinds.outputs), *saved))
        case Op.EXPERTS_BWD:
            return Effects(gradients, (slot(kinds.drows),))
        case Op.EXPERTS_DGRAD:
            return Effects(gradients, (slot(kinds.drows), slot(SlotKind.DSAVED)))
        case Op.EXPERTS_WGRAD:
            return Effects((*saved, slot(SlotKind.DSAVED)))
        case _:
            raise AssertionError(op)


@dataclass(frozen=True, slots=True)
class ExpertKinds:
    """Slots that the experts' ops read and write."""

    rows: SlotKind
    outputs: SlotKind
    doutputs: SlotKind
    drows: SlotKind


def expert_kinds(layout: Layout) -> ExpertKinds:
    """Slots of the experts' ops: with two hops those that gateways of their host fill and take."""
    if layout.two_hop:
        return ExpertKinds(
            SlotKind.NEAR_ROWS, SlotKind.NEAR_OUTPUTS, SlotKind.NEAR_DOUTPUTS, SlotKind.NEAR_DROWS
        )
    return ExpertKinds(SlotKind.ROWS, SlotKind.OUTPUTS, SlotKind.DOUTPUTS, SlotKind.DROWS)


def _gateway_effects(op: Op, layer: int, mb: int) -> Effects:
    def slots(*kinds: SlotKind) -> tuple[Slot, ...]:
        return tuple(Slot(Side.EXPERT, kind, layer, mb) for kind in kinds)

    routes = SlotKind.ROUTES
    match op:
        case Op.FAN_OUT:
            return Effects(slots(SlotKind.ROWS), slots(SlotKind.FAN_ROWS, routes))
        case Op.GATHER_ADD:
            return Effects(slots(SlotKind.PART_OUTPUTS, routes), slots(SlotKind.OUTPUTS))
        case Op.FAN_OUT_BWD:
            return Effects(slots(SlotKind.DOUTPUTS, routes), slots(SlotKind.FAN_DOUTPUTS))
        case Op.GATHER_ADD_BWD:
            return Effects(slots(SlotKind.PART_DROWS, routes), slots(SlotKind.DROWS))
        case _:
            raise AssertionError(op)


def _forward_effects(op: Op, layer: int, mb: int, spec: ProgramSpec) -> Effects:
    saved = _saved(layer, mb, spec)
    match op:
        case Op.EMBED:
            return Effects(writes=(_attention(SlotKind.HIDDEN, 0, mb),))
        case Op.ATTN_FWD:
            hidden = (_attention(SlotKind.HIDDEN, 0, mb),)
            rows: tuple[Slot, ...] = (_attention(SlotKind.ROWS, layer, mb),)
            if not spec.layout.fused_residual:
                rows = (*rows, _attention(SlotKind.RESIDUAL, layer, mb))
            return Effects(_inputs(layer, mb, spec) if layer else hidden, (*rows, *saved))
        case Op.HEAD_EVAL:
            return Effects(_inputs(layer, mb, spec))
        case Op.REDUCE_COUNTS:
            return Effects(saved, (_attention(SlotKind.COUNTS, layer, mb),))
        case _:
            raise AssertionError(op)


def _backward_effects(op: Op, layer: int, mb: int, spec: ProgramSpec) -> Effects:
    saved = _saved(layer, mb, spec)
    hidden = (_attention(SlotKind.DHIDDEN, 0, mb),)
    match op:
        case Op.HEAD:
            return Effects(_inputs(layer, mb, spec), _input_grads(layer, mb, spec))
        case Op.ATTN_BWD:
            counts = (_attention(SlotKind.COUNTS, layer, at) for at in spec.counts_read_by(mb))
            grads: tuple[Slot, ...] = (_attention(SlotKind.DROWS, layer, mb),)
            if not spec.layout.fused_residual:
                grads = (*grads, _attention(SlotKind.DRESIDUAL, layer, mb))
            writes = _input_grads(layer, mb, spec) if layer else hidden
            return Effects((*grads, *saved, *counts), writes)
        case Op.EMBED_BWD:
            return Effects(hidden)
        case _:
            raise AssertionError(op)


def _attention(kind: SlotKind, layer: int, mb: int) -> Slot:
    return Slot(Side.ATTENTION, kind, layer, mb)


def _saved(layer: int, mb: int, spec: ProgramSpec) -> tuple[Slot, ...]:
    """What a forward keeps for its backward."""
    return (_attention(SlotKind.SAVED, layer, mb),) if spec.training else ()


def _inputs(layer: int, mb: int, spec: ProgramSpec) -> tuple[Slot, ...]:
    """What attention of `layer` (or the head, for the number of layers) takes from before."""
    outputs = _attention(SlotKind.OUTPUTS, layer - 1, mb)
    if spec.layout.fused_residual:
        return (outputs,)
    return (outputs, _attention(SlotKind.RESIDUAL, layer - 1, mb))


def _input_grads(layer: int, mb: int, spec: ProgramSpec) -> tuple[Slot, ...]:
    outputs = _attention(SlotKind.DOUTPUTS, layer - 1, mb)
    if spec.layout.fused_residual:
        return (outputs,)
    return (outputs, _attention(SlotKind.DRESIDUAL, layer - 1, mb))


def owner(compute: Compute, layout: Layout) -> Group:
    """The role that must execute `compute`; the workers of `layout.host` of it do."""
    match compute.op:
        case Op.EMBED | Op.EMBED_BWD:
            return layout.embedding
        case Op.HEAD | Op.HEAD_EVAL:
            return layout.head
        case op if op in EXPERT_OPS or op in GATEWAY_OPS:
            assert compute.layer is not None
            return layout.experts(compute.layer)
        case _:
            assert compute.layer is not None
            return layout.attention(compute.layer)
