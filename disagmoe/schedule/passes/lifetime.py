"""Adds a `free` after the last use of every slot."""

from collections.abc import Callable, Sequence

from disagmoe.schedule.ir import Free, Instruction, Op, ProgramSpec, Slot, Transfer, effects
from disagmoe.schedule.layout import Group


def add_frees(
    instructions: list[Instruction], group: Group, spec: ProgramSpec
) -> list[Instruction]:
    """Return `instructions` with each slot freed right after the last one that touches it."""
    last: dict[Slot, int] = {}
    for index, instruction in enumerate(instructions):
        if isinstance(instruction, Transfer) and instruction.op is not Op.WAIT:
            continue  # its wait comes later
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
    return int(peak_size(instructions, group, spec, lambda slot: 1))


def peak_size(
    instructions: Sequence[Instruction],
    group: Group,
    spec: ProgramSpec,
    size: Callable[[Slot], float],
) -> float:
    """Largest sum of the sizes of slots that hold memory at once."""
    alive: dict[Slot, float] = {}
    now = peak = 0.0
    for instruction in instructions:
        if isinstance(instruction, Free):
            now -= alive.pop(instruction.slot)
            continue
        if isinstance(instruction, Transfer):
            if instruction.op not in (Op.POST_RECV, Op.EXCHANGE):
                continue
            written: tuple[Slot, ...] = (instruction.key.received,)
        else:
            written = effects(instruction, group, spec).writes
        for slot in written:
            if slot not in alive:
                alive[slot] = size(slot)
                now += alive[slot]
        peak = max(peak, now)
    return peak
