"""The `.sched` text form of a program; writing and reading are inverses.

A file holds one program: a version line, header lines `key value`, an empty line, then one
instruction per line.
"""

import re

from disagmoe.errors import ScheduleError
from disagmoe.schedule.ir import (
    COMPUTE_OPS,
    STEP_OPS,
    TRANSFER_OPS,
    Compute,
    Free,
    Instruction,
    Op,
    Program,
    ProgramSet,
    ProgramSpec,
    Slot,
    SlotKind,
    StepEnd,
    Transfer,
)
from disagmoe.schedule.layout import Channel, Group, Layout, Side

VERSION = "disagmoe-sched 4"

_HEADER = (
    "group",
    "layers",
    "groups",
    "attention_workers",
    "expert_workers",
    "fused_residual",
    "colocated",
    "rings",
    "workers_per_host",
    "micro_batches",
    "training",
    "reduce_counts",
    "split_backward",
)
_FLAGS = ("fused_residual", "colocated", "training", "split_backward")
_SUMS = ("0", "1", "2")
"""Values of `reduce_counts`: no sums, of each micro-batch, of the whole step."""


def write_program(program: Program, spec: ProgramSpec) -> str:
    """Return the text of `program`, with a final newline."""
    layout = spec.layout
    values = (
        program.group,
        layout.layers,
        layout.groups,
        layout.attention_workers,
        layout.expert_workers,
        int(layout.fused_residual),
        int(layout.colocated),
        layout.rings,
        layout.workers_per_host,
        spec.micro_batches,
        int(spec.training),
        int(spec.reduce_counts) + int(spec.counts_of_step),
        int(spec.split_backward),
    )
    header = [f"{key} {value}" for key, value in zip(_HEADER, values, strict=True)]
    body = [str(instruction) for instruction in program.instructions]
    return "\n".join([VERSION, *header, "", *body]) + "\n"


def read_program(text: str) -> tuple[Program, ProgramSpec]:
    """Read what `write_program` wrote. Raises ScheduleError with the line number."""
    lines = text.splitlines()
    if not lines or lines[0] != VERSION:
        found = repr(lines[0]) if lines else "an empty file"
        raise ScheduleError(f"line 1: expected {VERSION!r}, found {found}")
    header = {}
    for number, key in enumerate(_HEADER, start=2):
        line = lines[number - 1] if number <= len(lines) else ""
        found, _, value = line.partition(" ")
        if found != key or not value:
            raise ScheduleError(f"line {number}: expected '{key} VALUE', found {line!r}")
        header[key] = _header_value(key, value, number)
    blank = len(_HEADER) + 2
    if lines[blank - 1 : blank] != [""]:
        raise ScheduleError(f"line {blank}: expected an empty line after the header")
    try:
        spec = _spec({key: int(value) for key, value in header.items() if key != "group"})
    except ScheduleError as error:
        raise ScheduleError(f"header: {error}") from None
    instructions = []
    for number, line in enumerate(lines[blank:], start=blank + 1):
        try:
            instructions.append(parse_instruction(line))
        except ScheduleError as error:
            raise ScheduleError(f"line {number}: {error}") from None
    return Program(Group.parse(header["group"]), tuple(instructions)), spec


def _header_value(key: str, value: str, number: int) -> str:
    """Return `value` when it is legal for `key` on line `number`; raises ScheduleError."""
    if key == "group":
        try:
            Group.parse(value)
        except ScheduleError as error:
            raise ScheduleError(f"line {number}: {error}") from None
    elif key in _FLAGS and value not in ("0", "1"):
        raise ScheduleError(f"line {number}: {key} must be 0 or 1, found {value!r}")
    elif key == "reduce_counts" and value not in _SUMS:
        raise ScheduleError(f"line {number}: {key} must be 0, 1 or 2, found {value!r}")
    elif not (value.isascii() and value.isdecimal()):
        raise ScheduleError(f"line {number}: {key} must be a number, found {value!r}")
    return value


def _spec(values: dict[str, int]) -> ProgramSpec:
    layout = Layout(
        layers=values["layers"],
        groups=values["groups"],
        attention_workers=values["attention_workers"],
        expert_workers=values["expert_workers"],
        direct_residual=values["groups"] > 1 and not values["fused_residual"],
        fused_residual=bool(values["fused_residual"]),
        colocated=bool(values["colocated"]),
        rings=values["rings"],
        workers_per_host=values["workers_per_host"],
    )
    return ProgramSpec(
        layout=layout,
        micro_batches=values["micro_batches"],
        training=bool(values["training"]),
        reduce_counts=values["reduce_counts"] > 0,
        counts_of_step=values["reduce_counts"] == 2,
        split_backward=bool(values["split_backward"]),
    )


def read_programs(texts: list[str]) -> ProgramSet:
    """Read one program per group. Raises ScheduleError when they are not of one set."""
    read = [read_program(text) for text in texts]
    if not read:
        raise ScheduleError("no programs")
    specs = {spec for _, spec in read}
    if len(specs) != 1:
        raise ScheduleError("the programs are compiled for different layouts")
    spec = specs.pop()
    by_group = {program.group: program for program, _ in read}
    wanted = spec.layout.all_groups
    if len(read) != len(wanted) or set(by_group) != set(wanted):
        names = " ".join(str(group) for group in wanted)
        found = " ".join(str(program.group) for program, _ in read)
        raise ScheduleError(f"expected one program for each of {names}, found {found}")
    return ProgramSet(spec, tuple(by_group[group] for group in wanted))


_COMPUTE = re.compile(r"(\w+)(?: L(\d+))? m(\d+)")
_TRANSFER = re.compile(r"(\w+) (\S+) L(\d+) m(\d+)")
_FREE = re.compile(r"free ([AF])\.(\w+) L(\d+) m(\d+)")
_OPS = {str(op): op for op in Op}


def parse_instruction(line: str) -> Instruction:
    """Read one instruction; the exact inverse of `str`. Raises ScheduleError."""
    instruction = _parse(line)
    if instruction is None or str(instruction) != line:
        raise ScheduleError(f"cannot read {line!r}")
    return instruction


def _parse(line: str) -> Instruction | None:
    word = line.split(" ", 1)[0]
    op = _OPS.get(word)
    if op is None:
        raise ScheduleError(f"unknown instruction {word!r}; known: {', '.join(_OPS)}")
    if op in STEP_OPS:
        return StepEnd(op)
    if op in COMPUTE_OPS and (match := _COMPUTE.fullmatch(line)):
        layer = match[2]
        return Compute(op, None if layer is None else int(layer), int(match[3]))
    if op in TRANSFER_OPS and (match := _TRANSFER.fullmatch(line)):
        return Transfer(op, Channel.parse(match[2]), int(match[3]), int(match[4]))
    if op is Op.FREE and (match := _FREE.fullmatch(line)) and match[2] in set(SlotKind):
        slot = Slot(Side(match[1]), SlotKind(match[2]), int(match[3]), int(match[4]))
        return Free(slot)
    return None
