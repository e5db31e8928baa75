"""What a legal set of programs is, one function per rule; nothing runs that has not passed here."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from disagmoe.errors import ScheduleError
from disagmoe.schedule.chain import chain
from disagmoe.schedule.ir import (
    COUNT_OPS,
    STEP_OPS,
    SUMMING_OPS,
    Compute,
    Free,
    Op,
    Program,
    ProgramSet,
    ProgramSpec,
    Slot,
    StepEnd,
    Transfer,
    TransferKey,
    effects,
    owner,
)
from disagmoe.schedule.layout import Channel, Group
from disagmoe.schedule.rendezvous import Message, message_of, run_rendezvous

Rule = Callable[[ProgramSet], None]


def verify(programs: ProgramSet) -> None:
    """Raise ScheduleError, naming the rule, group and instruction, unless `programs` are legal."""
    for rule in RULES:
        check(rule, programs)


def check(rule: Rule, programs: ProgramSet) -> None:
    """Apply one rule; its name leads the message of the ScheduleError."""
    try:
        rule(programs)
    except ScheduleError as error:
        raise ScheduleError(f"{rule.__name__}: {error}") from None


def _fail(program: Program, index: int, reason: str) -> ScheduleError:
    """An error that shows the place: the guilty line between its neighbours."""
    lines = []
    for at in range(max(0, index - 2), min(len(program.instructions), index + 3)):
        mark = ">" if at == index else " "
        lines.append(f"  {mark} {at:4d}  {program.instructions[at]}")
    return ScheduleError(f"{program.group}, instruction {index}: {reason}\n" + "\n".join(lines))


def groups_match(programs: ProgramSet) -> None:
    """There is one program for each group of the layout, in order."""
    found = tuple(program.group for program in programs.programs)
    if found != programs.spec.layout.all_groups:
        raise ScheduleError(
            f"programs for {' '.join(map(str, found))}, "
            f"expected {' '.join(map(str, programs.spec.layout.all_groups))}"
        )


def computed_once(programs: ProgramSet) -> None:
    """Every op of every micro-batch is computed once, by the group that owns it."""
    spec = programs.spec
    wanted = {step.compute for mb in range(spec.micro_batches) for step in chain(spec, mb)}
    if spec.sums_counts:
        wanted |= {
            Compute(Op.REDUCE_COUNTS, layer, mb)
            for layer in range(spec.layout.layers)
            for mb in range(spec.micro_batches)
        }
    seen: set[Compute] = set()
    for program in programs.programs:
        for index, instruction in enumerate(program.instructions):
            if not isinstance(instruction, Compute):
                continue
            if instruction not in wanted:
                raise _fail(program, index, f"'{instruction}' is no op of this layout")
            right = spec.layout.host(owner(instruction, spec.layout))
            if right != program.group:
                raise _fail(program, index, f"'{instruction}' belongs to {right}")
            if instruction in seen:
                raise _fail(program, index, f"'{instruction}' is computed twice")
            seen.add(instruction)
    missing = sorted(str(compute) for compute in wanted - seen)
    if missing:
        raise ScheduleError(f"never computed: {', '.join(missing[:5])}")


def slots_live(programs: ProgramSet) -> None:
    """Every slot is written once, before it is read, and freed once, after its last use."""
    for program in programs.programs:
        _check_slots(program, programs.spec)


def _check_slots(program: Program, spec: ProgramSpec) -> None:
    memory = _Memory()
    for index, instruction in enumerate(program.instructions):
        touched = effects(instruction, program.group, spec)
        if isinstance(instruction, Free):
            refusal = memory.free(instruction.slot)
        else:
            refusal = memory.read(touched.reads) or memory.write(touched.writes)
        if refusal:
            raise _fail(program, index, refusal)
        if isinstance(instruction, Transfer) and touched.reads:
            slot = instruction.key.sent
            (memory.sending.discard if instruction.op is Op.WAIT else memory.sending.add)(slot)
    if memory.alive:
        names = ", ".join(sorted(map(str, memory.alive)))
        raise ScheduleError(f"{program.group}: never freed: {names}")


@dataclass(slots=True)
class _Memory:
    """Slots of a group; each method returns why it is refused, or None."""

    alive: set[Slot] = field(default_factory=set)
    freed: set[Slot] = field(default_factory=set)
    sending: set[Slot] = field(default_factory=set)

    def free(self, slot: Slot) -> str | None:
        if slot not in self.alive:
            return f"'{slot}' is freed {'twice' if slot in self.freed else 'before it is written'}"
        if slot in self.sending:
            return f"'{slot}' is freed while it is being sent"
        self.alive.remove(slot)
        self.freed.add(slot)
        return None

    def read(self, slots: Iterable[Slot]) -> str | None:
        for slot in slots:
            if slot not in self.alive:
                why = "after it is freed" if slot in self.freed else "before it is written"
                return f"'{slot}' is read {why}"
        return None

    def write(self, slots: Iterable[Slot]) -> str | None:
        for slot in slots:
            if slot in self.alive or slot in self.freed:
                return f"'{slot}' is written twice"
            self.alive.add(slot)
        return None


def transfers_complete(programs: ProgramSet) -> None:
    """Both ends of every transfer do their part once and in order: counts, post, wait."""
    spec = programs.spec
    # per group: each transfer of it, and how many of its ops are done
    done: dict[Group, dict[TransferKey, int]] = {program.group: {} for program in programs.programs}
    for mb in range(spec.micro_batches):
        for step in chain(spec, mb):
            for send in step.sends:
                done[spec.layout.host(send.key.channel.source)][send.key] = 0
                done[spec.layout.host(send.key.channel.target)][send.key] = 0
    for program in programs.programs:
        _check_transfers(program, done[program.group], spec)


def _check_transfers(program: Program, done: dict[TransferKey, int], spec: ProgramSpec) -> None:
    channels = {key.channel for key in done}
    end_ops = {channel: _end_ops(channel, program.group, spec) for channel in channels}
    for index, instruction in enumerate(program.instructions):
        if not isinstance(instruction, Transfer):
            continue
        key = instruction.key
        if key not in done:
            raise _fail(program, index, f"'{key}' is no transfer of this group")
        wants = end_ops[key.channel]
        found = wants[: done[key]]
        if found == wants or wants[done[key]] is not instruction.op:
            reason = f"'{key}' needs {', '.join(wants)} in this order"
            raise _fail(program, index, f"{reason}, found {_ops(found, instruction.op)}")
        done[key] += 1
    for key, count in done.items():
        wants = end_ops[key.channel]
        if count < len(wants):
            found_ops = _ops(wants[:count]) or "nothing"
            raise ScheduleError(
                f"{program.group}: '{key}' needs {', '.join(wants)}, found {found_ops}"
            )


def _ops(ops: Iterable[Op], *more: Op) -> str:
    return ", ".join((*ops, *more))


def _end_ops(channel: Channel, group: Group, spec: ProgramSpec) -> tuple[Op, ...]:
    """What `group` does in a transfer on `channel`, in order."""
    if spec.layout.exchanges(channel):
        ops = (Op.EXCHANGE_COUNTS, Op.EXCHANGE, Op.WAIT)
    elif spec.layout.host(channel.source) == group:
        ops = (Op.SEND_COUNTS, Op.POST_SEND, Op.WAIT)
    else:
        ops = (Op.RECV_COUNTS, Op.POST_RECV, Op.WAIT)
    return ops if spec.sends_counts(channel) else ops[1:]


def channels_ordered(programs: ProgramSet) -> None:
    """Both ends of a channel use it in the same order, counts and payloads alike: a message has no
    tag, so only its place tells what it is."""
    orders: dict[Channel, dict[Group, list[str]]] = {}
    for program in programs.programs:
        for instruction in program.instructions:
            if isinstance(instruction, Transfer) and (message := message_of(instruction)):
                ends = orders.setdefault(message.key.channel, {})
                ends.setdefault(program.group, []).append(message.what)
    for channel, ends in orders.items():
        host = programs.spec.layout.host
        source, target = ends.get(host(channel.source), []), ends.get(host(channel.target), [])
        if source != target:
            pairs = enumerate(zip(source, target, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(source), len(target)))
            raise ScheduleError(
                f"{channel}: message {at} is {_item(source, at)} at {channel.source} "
                f"but {_item(target, at)} at {channel.target}"
            )


def _item(order: list[str], at: int) -> str:
    return order[at] if at < len(order) else "missing"


def payloads_follow_counts(programs: ProgramSet) -> None:
    """Payloads of a channel come in the order of their counts: a worker handles one transfer of a
    channel after the other, counts and payload of each."""
    spec = programs.spec
    for program in programs.programs:
        told: dict[Channel, deque[TransferKey]] = defaultdict(deque)
        for index, instruction in enumerate(program.instructions):
            if not isinstance(instruction, Transfer) or instruction.op is Op.WAIT:
                continue
            key, queue = instruction.key, told[instruction.channel]
            if instruction.op in COUNT_OPS:
                queue.append(key)
            elif spec.sends_counts(key.channel) and queue.popleft() != key:
                raise _fail(program, index, f"'{key}' comes before payloads told of earlier")


def globally_ordered(programs: ProgramSet) -> None:
    """One global order of all messages contains every group's order.

    Kahn's algorithm over the union of the groups' orders; what is left holds a cycle.
    """
    after: dict[Message, set[Message]] = {}
    before: Counter[Message] = Counter()
    for program in programs.programs:
        previous: Message | None = None
        for instruction in program.instructions:
            if isinstance(instruction, Transfer) and (message := message_of(instruction)):
                after.setdefault(message, set())
                if previous is not None and message not in after[previous]:
                    after[previous].add(message)
                    before[message] += 1
                previous = message
    free = [message for message in after if before[message] == 0]
    left = dict.fromkeys(after)  # a dict keeps the order, so that the error does not vary
    while free:
        message = free.pop()
        del left[message]
        for successor in after[message]:
            before[successor] -= 1
            if before[successor] == 0:
                free.append(successor)
    if left:
        names = " -> ".join(map(str, _cycle({m: after[m] for m in left})))
        raise ScheduleError(f"no global order of transfers; a cycle: {names}")


def _cycle(after: dict[Message, set[Message]]) -> list[Message]:
    """Return a cycle, its first member again at its end; every key of `after` follows another."""
    preceding = {
        successor: message
        for message, successors in after.items()
        for successor in sorted(successors, key=str)
        if successor in after
    }
    path = [next(iter(after))]
    seen = set(path)
    while (message := preceding[path[-1]]) not in seen:
        path.append(message)
        seen.add(message)
    return [message, *reversed(path[path.index(message) :])]


def sums_ascend(programs: ProgramSet) -> None:
    """Ops that add to a gradient or to the loss meet the micro-batches in ascending order, so that
    the sums have the same bits in every schedule."""
    for program in programs.programs:
        last: dict[tuple[Op, int | None], int] = {}
        for index, instruction in enumerate(program.instructions):
            if isinstance(instruction, Compute) and instruction.op in SUMMING_OPS:
                key = (instruction.op, instruction.layer)
                if instruction.mb <= last.get(key, -1):
                    raise _fail(
                        program, index, f"'{instruction}' comes after micro-batch {last[key]}"
                    )
                last[key] = instruction.mb


def step_ends(programs: ProgramSet) -> None:
    """A training program ends with the step's end, each part once; an evaluation has none."""
    wanted = [StepEnd(op) for op in STEP_OPS] if programs.spec.training else []
    for program in programs.programs:
        ends = [i for i, x in enumerate(program.instructions) if isinstance(x, StepEnd)]
        tail = list(program.instructions[len(program.instructions) - len(wanted) :])
        if len(ends) != len(wanted) or (wanted and tail != wanted):
            names = ", ".join(map(str, wanted)) or "no step end"
            raise ScheduleError(f"{program.group}: must end with {names}")


def finishes_with_free_channels(programs: ProgramSet) -> None:
    """A rendezvous run finishes when each channel has a queue of its own."""
    run_rendezvous(programs, serial=False)


def finishes_in_launch_order(programs: ProgramSet) -> None:
    """A rendezvous run finishes when all transfers of a worker go one by one in launch order."""
    run_rendezvous(programs, serial=True)


RULES: tuple[Rule, ...] = (
    groups_match,
    computed_once,
    transfers_complete,
    slots_live,
    channels_ordered,
    payloads_follow_counts,
    globally_ordered,
    sums_ascend,
    step_ends,
    finishes_with_free_channels,
    finishes_in_launch_order,
)
"""All rules; a later one may rely on what an earlier one has proved."""
