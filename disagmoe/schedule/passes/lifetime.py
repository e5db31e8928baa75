"""Adds a `free` after the last use of every slot."""

from disagmoe.schedule.ir import Free, Instruction, ProgramSpec, Slot, effects
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


def peak_slots(instructions: list[Instruction], group: Group, spec: ProgramSpec) -> int:
    """Largest number of slots alive at once."""
    alive = peak = 0
    seen: set[Slot] = set()
    for instruction in instructions:
        if isinstance(instruction, Free):
            alive -= 1
            continue
        for slot in effects(instruction, group, spec).writes:
            if slot not in seen:
                seen.add(slot)
                alive += 1
        peak = max(peak, alive)
    return peak
