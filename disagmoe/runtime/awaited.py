"""Whom a worker waits for at an instruction: what is asked when a run seems to hang."""

from disagmoe.runtime.context import Context
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.ir import Compute, Instruction, Op, StepEnd, Transfer
from disagmoe.schedule.layout import Group

_COMPUTING = frozenset({Kind.COMPUTE, Kind.OPTIMIZER, Kind.DATA, Kind.CHECKPOINT})
"""Kinds of time in which a worker waits for nobody."""


def awaited(instruction: Instruction | None, kind: Kind, context: Context) -> tuple[str, ...]:
    """Return the workers without which `instruction` cannot end, in world-rank order; () while the
    worker of `context` computes, which is the case in `kind`."""
    if instruction is None or kind in _COMPUTING:
        return ()
    match instruction:
        case Transfer(channel=channel):
            receives = context.layout.host(channel.target) == context.worker.group
            return _members(channel.source if receives else channel.target, context)
        case Compute(op=Op.REDUCE_COUNTS):
            return _members(context.worker.group, context)
        case StepEnd(op=Op.REDUCE_WORLD):
            return _others(tuple(map(str, context.layout.workers)), context)
        case StepEnd():
            return _replicas(context)
        case _:
            return ()


def _members(role: Group, context: Context) -> tuple[str, ...]:
    layout = context.layout
    members = layout.members(role, context.worker.ring)
    return _others(tuple(str(layout.process(member)) for member in members), context)


def _replicas(context: Context) -> tuple[str, ...]:
    """Workers of the same group, in all rings: those that gradients are summed with."""
    group = context.worker.group
    return _others(tuple(str(w) for w in context.layout.workers if w.group == group), context)


def _others(names: tuple[str, ...], context: Context) -> tuple[str, ...]:
    return tuple(name for name in names if name != str(context.worker))
