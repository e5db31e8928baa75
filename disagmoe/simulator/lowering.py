"""Programs in numbers, so that the event loop meets no objects.

An op is a place in the chain of a micro-batch (`schedule/chain.py`), a wire is a transfer of that
chain; both are numbered, and an instruction is about one of them for one micro-batch. Numbers of
all micro-batches: op = mb * places + place, transfer = mb * wires + wire.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from disagmoe.schedule.chain import Place, Wire, places
from disagmoe.schedule.costs import Times
from disagmoe.schedule.ir import (
    Compute,
    Instruction,
    Op,
    Program,
    ProgramSet,
    ProgramSpec,
    StepEnd,
    Transfer,
)
from disagmoe.schedule.layout import Channel, Group


class Code(IntEnum):
    """What an instruction means in time; all others take none."""

    COMPUTE = 0
    POST = 1
    """Hand a payload over to the network."""
    TAKE = 2
    """Wait until a payload has come."""
    SENT = 3
    """Wait until a payload has left."""


Instructions = tuple[tuple[int, int], ...]
"""Codes, as plain numbers, each with the number of its op or transfer."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """Programs of all groups, in the order of `layout.all_groups`."""

    spec: ProgramSpec
    chain: tuple[Place, ...]
    wires: tuple[tuple[int, Wire], ...]
    """All wires of the chain, each with the place that it starts at."""
    programs: tuple[Instructions, ...]
    ends: bool
    """Whether a step ends with sums of gradients and an update."""

    @property
    def operations(self) -> int:
        """Ops and transfers of a step."""
        return self.spec.micro_batches * (len(self.chain) + len(self.wires))


def lower(programs: ProgramSet, times: Times) -> Lowered:
    """Return `programs` in numbers; `times` are those of their chain."""
    chain = places(programs.spec, times)
    wires = tuple((at, wire) for at, place in enumerate(chain) for wire in place.wires)
    place_of = {(place.compute.op, place.compute.layer): at for at, place in enumerate(chain)}
    wire_of = {
        (wire.send.key.channel, wire.send.key.layer): at for at, (_, wire) in enumerate(wires)
    }
    lowering = _Lowering(programs.spec, place_of, wire_of)
    return Lowered(
        spec=programs.spec,
        chain=chain,
        wires=wires,
        programs=tuple(lowering.program(program) for program in programs.programs),
        ends=any(isinstance(one, StepEnd) for one in programs.programs[0].instructions[-1:]),
    )


@dataclass(frozen=True, slots=True)
class _Lowering:
    spec: ProgramSpec
    place_of: Mapping[tuple[Op, int | None], int]
    wire_of: Mapping[tuple[Channel, int], int]

    def program(self, program: Program) -> Instructions:
        found = (self._lower(one, program.group) for one in program.instructions)
        return tuple(one for one in found if one is not None)

    def _lower(self, instruction: Instruction, group: Group) -> tuple[int, int] | None:
        if isinstance(instruction, Compute):
            if instruction.op is Op.REDUCE_COUNTS:  # a message of a few bytes
                return None
            place = self.place_of[instruction.op, instruction.layer]
            return int(Code.COMPUTE), instruction.mb * len(self.place_of) + place
        if not isinstance(instruction, Transfer):
            return None
        code = self._code(instruction, group)
        if code is None:
            return None
        wire = self.wire_of[instruction.channel, instruction.layer]
        return int(code), instruction.mb * len(self.wire_of) + wire

    def _code(self, transfer: Transfer, group: Group) -> Code | None:
        match transfer.op:
            case Op.POST_SEND | Op.EXCHANGE:
                return Code.POST
            case Op.WAIT:
                receives = self.spec.layout.host(transfer.channel.target) == group
                return Code.TAKE if receives else Code.SENT
            case _:  # counts go ahead of payloads, and receives wait for them from the beginning
                return None
