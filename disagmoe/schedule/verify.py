"""What a legal set of programs is, one function per rule; nothing runs that has not passed here."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from disagmoe.errors import ScheduleError
from disagmoe.schedule.ir import (
    BACKWARD_OPS,
    STEP_OPS,
    Compute,
    Free,
    Instruction,
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
from disagmoe.schedule.timeline import chain


def verify(programs: ProgramSet) -> None:
    """Raise ScheduleError, naming rule, group and instruction, unless `programs` are legal."""
    for rule in RULES:
        rule(programs)


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
    if spec.reduce_counts and spec.training:
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
            if owner(instruction, spec.layout) != program.group:
                right = owner(instruction, spec.layout)
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
    alive: set[Slot] = set()
    freed: set[Slot] = set()
    sending: set[Slot] = set()
    for index, instruction in enumerate(program.instructions):
        if isinstance(instruction, Free):
            slot = instruction.slot
            if slot not in alive:
                why = "freed twice" if slot in freed else "freed before it is written"
                raise _fail(program, index, f"'{slot}' is {why}")
            if slot in sending:
                raise _fail(program, index, f"'{slot}' is freed while it is being sent")
            alive.remove(slot)
            freed.add(slot)
            continue
        touched = effects(instruction, program.group, spec)
        for slot in touched.reads:
            if slot not in alive:
                why = "after it is freed" if slot in freed else "before it is written"
                raise _fail(program, index, f"'{slot}' is read {why}")
        for slot in touched.writes:
            if slot in alive or slot in freed:
                raise _fail(program, index, f"'{slot}' is written twice")
            alive.add(slot)
        if isinstance(instruction, Transfer) and instruction.channel.source == program.group:
            slot = instruction.key.slot
            (sending.discard if instruction.op is Op.WAIT else sending.add)(slot)
    if alive:
        raise ScheduleError(f"{program.group}: never freed: {', '.join(sorted(map(str, alive)))}")


def transfers_complete(programs: ProgramSet) -> None:
    """Both ends of every transfer do their part once and in order: counts, post, wait."""
    spec = programs.spec
    wanted = {
        TransferKey(channel, step.layer_sent, step.compute.mb)
        for mb in range(spec.micro_batches)
        for step in chain(spec, mb)
        for channel in step.sends
    }
    for program in programs.programs:
        mine = {key for key in wanted if program.group in _ends(key.channel)}
        done: dict[TransferKey, list[Op]] = {}
        for index, instruction in enumerate(program.instructions):
            if isinstance(instruction, Transfer):
                if instruction.key not in mine:
                    raise _fail(program, index, f"'{instruction.key}' is no transfer of this group")
                done.setdefault(instruction.key, []).append(instruction.op)
                wants = _end_ops(instruction.channel, program.group, spec)
                got = done[instruction.key]
                if got != wants[: len(got)]:
                    raise _fail(
                        program,
                        index,
                        f"'{instruction.key}' needs {', '.join(wants)} in this order, "
                        f"found {', '.join(got)}",
                    )
        for key in sorted(mine, key=str):
            wants = _end_ops(key.channel, program.group, spec)
            if done.get(key, []) != wants:
                found = ", ".join(done.get(key, [])) or "nothing"
                raise ScheduleError(
                    f"{program.group}: '{key}' needs {', '.join(wants)}, found {found}"
                )


def _ends(channel: Channel) -> tuple[Group, Group]:
    return (channel.source, channel.target)


def _end_ops(channel: Channel, group: Group, spec: ProgramSpec) -> list[Op]:
    ops = [Op.SEND_COUNTS, Op.POST_SEND] if channel.source == group else []
    ops = ops or [Op.RECV_COUNTS, Op.POST_RECV]
    return [*(ops if spec.sends_counts(channel) else ops[1:]), Op.WAIT]


_POSTS = frozenset({Op.POST_SEND, Op.POST_RECV})
_COUNTS = frozenset({Op.SEND_COUNTS, Op.RECV_COUNTS})


def channels_ordered(programs: ProgramSet) -> None:
    """Both ends of a channel use it in the same order, for counts and for payloads."""
    for ops, what in ((_POSTS, "payloads"), (_COUNTS, "counts")):
        orders: dict[Channel, dict[Group, list[str]]] = {}
        for program in programs.programs:
            for instruction in program.instructions:
                if isinstance(instruction, Transfer) and instruction.op in ops:
                    ends = orders.setdefault(instruction.channel, {})
                    ends.setdefault(program.group, []).append(
                        f"L{instruction.layer} m{instruction.mb}"
                    )
        for channel, ends in orders.items():
            source, target = ends.get(channel.source, []), ends.get(channel.target, [])
            if source != target:
                at = next(
                    (i for i, (a, b) in enumerate(zip(source, target, strict=False)) if a != b),
                    min(len(source), len(target)),
                )
                raise ScheduleError(
                    f"{channel}: {what} number {at} is {_item(source, at)} at {channel.source} "
                    f"but {_item(target, at)} at {channel.target}"
                )


def _item(order: list[str], at: int) -> str:
    return order[at] if at < len(order) else "missing"


def globally_ordered(programs: ProgramSet) -> None:
    """One global order of all transfers contains every group's order of posts.

    Kahn's algorithm over the union of the groups' orders; what is left is a cycle.
    """
    after: dict[TransferKey, set[TransferKey]] = {}
    before: Counter[TransferKey] = Counter()
    for program in programs.programs:
        previous: TransferKey | None = None
        for instruction in program.instructions:
            if isinstance(instruction, Transfer) and instruction.op in _POSTS:
                key = instruction.key
                after.setdefault(key, set())
                if previous is not None and key not in after[previous]:
                    after[previous].add(key)
                    before[key] += 1
                previous = key
    queue = deque(key for key in after if before[key] == 0)
    left = set(after)
    while queue:
        key = queue.popleft()
        left.discard(key)
        for successor in after[key]:
            before[successor] -= 1
            if before[successor] == 0:
                queue.append(successor)
    if left:
        names = ", ".join(sorted(map(str, left))[:4])
        raise ScheduleError(f"no global order of transfers: a cycle among {names}")


def gradients_ascend(programs: ProgramSet) -> None:
    """Every backward op meets the micro-batches in ascending order, so gradients add up alike."""
    for program in programs.programs:
        last: dict[tuple[Op, int | None], int] = {}
        for index, instruction in enumerate(program.instructions):
            if isinstance(instruction, Compute) and instruction.op in BACKWARD_OPS:
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
    _rendezvous(programs, lambda key: key.channel)


def finishes_in_launch_order(programs: ProgramSet) -> None:
    """A rendezvous run finishes when all transfers of a worker go one by one in launch order."""
    _rendezvous(programs, lambda key: None)


def _rendezvous(programs: ProgramSet, queue_of: Callable[[TransferKey], object]) -> None:
    """Run all programs without time: a post of a send blocks until the receive is posted, counts
    block until both ends are there, a wait blocks until the transfer has moved, and a transfer
    moves when it heads the queue of both its groups. All workers of a group run one program, so a
    grouped transfer arrives when both groups are there. Raises ScheduleError on a standstill."""
    runners = {program.group: _Runner(program, queue_of) for program in programs.programs}
    state = _Meetings(runners)
    while not all(runner.done for runner in runners.values()):
        progress = False
        for runner in runners.values():
            while not runner.done and _may_pass(runner, state):
                runner.at += 1
                progress = True
        if not progress:
            stuck = "\n".join(
                f"  {runner.program.group} stands at {runner.at}: {runner.current}"
                for runner in runners.values()
                if not runner.done
            )
            raise ScheduleError(f"deadlock\n{stuck}")


class _Runner:
    """One group in the rendezvous run: its place in its program and its queues of posts."""

    def __init__(self, program: Program, queue_of: Callable[[TransferKey], object]) -> None:
        self.program = program
        self.at = 0
        self.posted: set[TransferKey] = set()
        self._queue_of = queue_of
        self._queues: dict[object, deque[TransferKey]] = {}

    @property
    def done(self) -> bool:
        return self.at == len(self.program.instructions)

    @property
    def current(self) -> Instruction:
        return self.program.instructions[self.at]

    def stands_at(self, op: Op, key: TransferKey) -> bool:
        """Whether the next instruction is `op` of the transfer `key`."""
        if self.done or not isinstance(self.current, Transfer):
            return False
        return self.current.op is op and self.current.key == key

    def post(self, key: TransferKey) -> None:
        """Queue the transfer."""
        self.posted.add(key)
        self._queues.setdefault(self._queue_of(key), deque()).append(key)

    @property
    def heads(self) -> list[TransferKey]:
        """The transfers that may move next, one per queue."""
        return [queue[0] for queue in self._queues.values() if queue]

    def move(self, key: TransferKey) -> None:
        """Take the moved transfer off its queue."""
        self._queues[self._queue_of(key)].popleft()


@dataclass(slots=True)
class _Meetings:
    """What both ends of transfers have done together."""

    runners: dict[Group, _Runner]
    counted: set[TransferKey] = field(default_factory=set)
    moved: set[TransferKey] = field(default_factory=set)

    def move_from(self, runner: _Runner) -> None:
        """Move all that can move now, starting at `runner`, whose queues have just changed."""
        changed = [runner]
        while changed:
            for key in changed.pop().heads:
                ends = [self.runners[end] for end in _ends(key.channel)]
                if all(key in end.heads for end in ends):
                    for end in ends:
                        end.move(key)
                    self.moved.add(key)
                    changed.extend(ends)


def _may_pass(runner: _Runner, state: _Meetings) -> bool:
    """Whether the runner's next instruction goes through now; records what that makes happen."""
    transfer = runner.current
    if not isinstance(transfer, Transfer):
        return True
    key = transfer.key
    sender, receiver = (state.runners[end] for end in _ends(key.channel))
    match transfer.op:
        case Op.SEND_COUNTS | Op.RECV_COUNTS:
            if sender.stands_at(Op.SEND_COUNTS, key) and receiver.stands_at(Op.RECV_COUNTS, key):
                state.counted.add(key)
            return key in state.counted
        case Op.POST_SEND | Op.POST_RECV:
            if key not in runner.posted:
                runner.post(key)
                state.move_from(runner)
            return transfer.op is Op.POST_RECV or key in receiver.posted
        case _:
            return key in state.moved


RULES: tuple[Callable[[ProgramSet], None], ...] = (
    groups_match,
    computed_once,
    transfers_complete,
    slots_live,
    channels_ordered,
    globally_ordered,
    gradients_ascend,
    step_ends,
    finishes_with_free_channels,
    finishes_in_launch_order,
)
"""All rules, cheapest first."""
