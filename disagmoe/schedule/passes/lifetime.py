"""Adds a `free` after the last use of every slot."""

from collections.abc import Sequence

from disagmoe.schedule.ir import Free, Instruction, Op, ProgramSpec, Slot, Transfer, effects
from disagmoe.schedule.layout import Group


def add_frees(
    instructions: list[Instruction], group: Group, spec: ProgramSpec
) -> list[Instruction]:
    """Return `instructions` with each slot freed right after the last one that touches it."""
    last: dict[Slot, int] = {}
    for index, instruction in enumerate(instructions):
        touched = effects(instruction, group, spec)
        for slot in (*touched.reads, *touched.writes):
            last[slot] = index
    ends: dict[int, list[Slot]] = {}
    for slot, index in last.items():
        ends.setdefault(index, []).append(slot)
    out: list[Instruction] = []
    for index, instruction in enumerate(instructions):
        out.append(instruction)
        out.extend(Free(slot) for slot in ends.get(index, ()))
    return out


def peak_slots(instructions: Sequence[Instruction], group: Group, spec: ProgramSpec) -> int:
    """Largest number of slots that hold memory at once; a received one does from its post on."""
    alive: set[Slot] = set()
    peak = 0
    for instruction in instructions:
        if isinstance(instruction, Free):
            alive.discard(instruction.slot)
        elif isinstance(instruction, Transfer) and instruction.op in (Op.POST_RECV, Op.EXCHANGE):
            alive.add(instruction.key.received)
        else:
            alive.update(effects(instruction, group, spec).writes)
        peak = max(peak, len(alive))
    return peak
