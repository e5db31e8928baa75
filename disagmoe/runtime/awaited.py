"""Whom a worker waits for at an instruction: what is asked when a run seems to hang."""

from disagmoe.runtime.context import Context
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.gateways import peers
from disagmoe.schedule.ir import Compute, Instruction, Op, StepEnd, Transfer
from disagmoe.schedule.layout import Worker

_COMPUTING = frozenset({Kind.COMPUTE, Kind.OPTIMIZER, Kind.DATA, Kind.CHECKPOINT})
"""Kinds of time in which a worker waits for nobody."""


def awaited(instruction: Instruction | None, kind: Kind, context: Context) -> tuple[str, ...]:
    """Return the workers without which `instruction` cannot end, in world-rank order; () while the
    worker of `context` computes, which is the case in `kind`."""
    if instruction is None or kind in _COMPUTING:
        return ()
    match instruction:
        case Transfer(channel=channel):
            layout, me = context.layout, context.worker
            receives = layout.host(channel.target) == me.group
            return _processes(peers(layout, channel, me, sends=not receives), context)
        case Compute(op=Op.REDUCE_COUNTS):
            group, ring = context.worker.group, context.worker.ring
            return _processes(context.layout.members(group, ring), context)
        case StepEnd(op=Op.REDUCE_WORLD):
            return _others(tuple(map(str, context.layout.workers)), context)
        case StepEnd():
            return _replicas(context)
        case _:
            return ()


def _processes(roles: tuple[Worker, ...], context: Context) -> tuple[str, ...]:
    return _others(tuple(str(context.layout.process(role)) for role in roles), context)


def _replicas(context: Context) -> tuple[str, ...]:
    """Workers of the same group, in all rings: those that gradients are summed with."""
    group = context.worker.group
    return _others(tuple(str(w) for w in context.layout.workers if w.group == group), context)


def _others(names: tuple[str, ...], context: Context) -> tuple[str, ...]:
    return tuple(name for name in names if name != str(context.worker))
