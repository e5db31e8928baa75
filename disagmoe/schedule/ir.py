"""Instructions and programs: frozen values, of which a schedule is made.

A program belongs to a group; all workers of the group run it, each on its own rank's share.
README.md beside this file says what each instruction does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

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
    ATTN_BWD = "attn_bwd"
    EMBED_BWD = "embed_bwd"
    REDUCE_COUNTS = "reduce_counts"
    SEND_COUNTS = "send_counts"
    RECV_COUNTS = "recv_counts"
    POST_SEND = "post_send"
    POST_RECV = "post_recv"
    WAIT = "wait"
    FREE = "free"
    REDUCE_GRADS = "reduce_grads"
    REDUCE_WORLD = "reduce_world"
    UPDATE = "update"


LAYER_OPS = frozenset({Op.ATTN_FWD, Op.EXPERTS_FWD, Op.EXPERTS_BWD, Op.ATTN_BWD, Op.REDUCE_COUNTS})
EDGE_OPS = frozenset({Op.EMBED, Op.HEAD, Op.HEAD_EVAL, Op.EMBED_BWD})
COMPUTE_OPS = LAYER_OPS | EDGE_OPS
TRANSFER_OPS = frozenset({Op.SEND_COUNTS, Op.RECV_COUNTS, Op.POST_SEND, Op.POST_RECV, Op.WAIT})
STEP_OPS = (Op.REDUCE_GRADS, Op.REDUCE_WORLD, Op.UPDATE)
BACKWARD_OPS = frozenset({Op.HEAD, Op.EXPERTS_BWD, Op.ATTN_BWD, Op.EMBED_BWD})
SUMMING_OPS = BACKWARD_OPS | {Op.HEAD_EVAL}
"""Ops that add to a gradient or to the loss; each meets the micro-batches in ascending order, since
a sum of floats depends on its order."""
POST_OPS = frozenset({Op.POST_SEND, Op.POST_RECV})
COUNT_OPS = frozenset({Op.SEND_COUNTS, Op.RECV_COUNTS})


class SlotKind(StrEnum):
    """What a slot holds; a payload has the same name at both ends of its channel."""

    HIDDEN = "hidden"
    ROWS = "rows"
    OUTPUTS = "outputs"
    RESIDUAL = "residual"
    SAVED = "saved"
    COUNTS = "counts"
    DOUTPUTS = "doutputs"
    DROWS = "drows"
    DRESIDUAL = "dresidual"
    DHIDDEN = "dhidden"


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """A buffer of one group for one layer and micro-batch, written `rows L3 m0`."""

    kind: SlotKind
    layer: int
    mb: int

    def __str__(self) -> str:
        return f"{self.kind} L{self.layer} m{self.mb}"


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


@dataclass(frozen=True, slots=True, order=True)
class TransferKey:
    """A transfer as both ends know it."""

    channel: Channel
    layer: int
    mb: int

    def __str__(self) -> str:
        return f"{self.channel} L{self.layer} m{self.mb}"

    @property
    def slot(self) -> Slot:
        """The payload, the same slot at both ends."""
        return Slot(payload(self.channel), self.layer, self.mb)


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
}


def payload(channel: Channel) -> SlotKind:
    """What `channel` carries. Raises ScheduleError for a channel between expert groups."""
    kind = _PAYLOADS.get((channel.source.side, channel.target.side, channel.direction))
    if kind is None:
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

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise ScheduleError(f"{self.micro_batches} micro-batches; use 1 or more")

    @property
    def sums_counts(self) -> bool:
        """Whether the programs hold `reduce_counts`."""
        return self.reduce_counts and self.training

    def sends_counts(self, channel: Channel) -> bool:
        """Whether the receiver must be told the row counts of `channel` beforehand.

        Rows always; outputs only when they arrive at another group than the one that sent the
        rows; gradients never, since both ends remember the forward counts.
        """
        kind = payload(channel)
        return kind is SlotKind.ROWS or (kind is SlotKind.OUTPUTS and self.layout.groups > 1)


@dataclass(frozen=True, slots=True)
class Program:
    """The instructions of one group."""

    group: Group
    instructions: tuple[Instruction, ...]


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


def _names(programs: Iterable[Program]) -> str:
    return ", ".join(str(program.group) for program in programs)


@dataclass(frozen=True, slots=True)
class Effects:
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
            slot = instruction.key.slot
            if channel.source == group:
                return Effects(reads=(slot,))
            return Effects(writes=(slot,)) if op is Op.WAIT else Effects()
        case Free() | StepEnd():
            return Effects()


def _compute_effects(compute: Compute, spec: ProgramSpec) -> Effects:
    layer = spec.layout.layers if compute.layer is None else compute.layer
    if compute.op in BACKWARD_OPS:
        return _backward_effects(compute.op, layer, compute.mb, spec)
    return _forward_effects(compute.op, layer, compute.mb, spec)


def _forward_effects(op: Op, layer: int, mb: int, spec: ProgramSpec) -> Effects:
    saved = _saved(layer, mb, spec)
    match op:
        case Op.EMBED:
            return Effects(writes=(Slot(SlotKind.HIDDEN, 0, mb),))
        case Op.ATTN_FWD:
            hidden = (Slot(SlotKind.HIDDEN, 0, mb),)
            rows = (Slot(SlotKind.ROWS, layer, mb), Slot(SlotKind.RESIDUAL, layer, mb))
            return Effects(_inputs(layer, mb) if layer else hidden, (*rows, *saved))
        case Op.EXPERTS_FWD:
            outputs = Slot(SlotKind.OUTPUTS, layer, mb)
            return Effects((Slot(SlotKind.ROWS, layer, mb),), (outputs, *saved))
        case Op.HEAD_EVAL:
            return Effects(_inputs(layer, mb))
        case Op.REDUCE_COUNTS:
            return Effects(saved, (Slot(SlotKind.COUNTS, layer, mb),))
        case _:
            raise AssertionError(op)


def _backward_effects(op: Op, layer: int, mb: int, spec: ProgramSpec) -> Effects:
    saved = _saved(layer, mb, spec)
    hidden = (Slot(SlotKind.DHIDDEN, 0, mb),)
    match op:
        case Op.HEAD:
            return Effects(_inputs(layer, mb), _input_grads(layer, mb))
        case Op.EXPERTS_BWD:
            rows = Slot(SlotKind.DROWS, layer, mb)
            return Effects((Slot(SlotKind.DOUTPUTS, layer, mb), *saved), (rows,))
        case Op.ATTN_BWD:
            counts = (Slot(SlotKind.COUNTS, layer, mb),) if spec.sums_counts else ()
            grads = (Slot(SlotKind.DROWS, layer, mb), Slot(SlotKind.DRESIDUAL, layer, mb))
            return Effects((*grads, *saved, *counts), _input_grads(layer, mb) if layer else hidden)
        case Op.EMBED_BWD:
            return Effects(hidden)
        case _:
            raise AssertionError(op)


def _saved(layer: int, mb: int, spec: ProgramSpec) -> tuple[Slot, ...]:
    """What a forward keeps for its backward."""
    return (Slot(SlotKind.SAVED, layer, mb),) if spec.training else ()


def _inputs(layer: int, mb: int) -> tuple[Slot, ...]:
    """What attention of `layer` (or the head, for the number of layers) takes from before."""
    return (Slot(SlotKind.OUTPUTS, layer - 1, mb), Slot(SlotKind.RESIDUAL, layer - 1, mb))


def _input_grads(layer: int, mb: int) -> tuple[Slot, ...]:
    return (Slot(SlotKind.DOUTPUTS, layer - 1, mb), Slot(SlotKind.DRESIDUAL, layer - 1, mb))


def owner(compute: Compute, layout: Layout) -> Group:
    """The group that must execute `compute`."""
    match compute.op:
        case Op.EMBED | Op.EMBED_BWD:
            return layout.embedding
        case Op.HEAD | Op.HEAD_EVAL:
            return layout.head
        case Op.EXPERTS_FWD | Op.EXPERTS_BWD:
            assert compute.layer is not None
            return layout.experts(compute.layer)
        case _:
            assert compute.layer is not None
            return layout.attention(compute.layer)
