"""A run of all programs without time, in which every transfer is a meeting: finds deadlocks.

NCCL promises no more than this run assumes, and a buffer of gloo that hides a bad order is not in
it.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from disagmoe.errors import ScheduleError
from disagmoe.schedule.ir import (
    COUNT_OPS,
    POST_OPS,
    Compute,
    Instruction,
    Op,
    Program,
    ProgramSet,
    Transfer,
    TransferKey,
)
from disagmoe.schedule.layout import Channel


@dataclass(frozen=True, slots=True)
class Message:
    """What one place in the order of a channel holds: the counts or the payload of a transfer."""

    counts: bool
    key: TransferKey

    @property
    def what(self) -> str:
        """The message without its channel."""
        kind = "counts" if self.counts else "payload"
        return f"{kind} L{self.key.layer} m{self.key.mb}"

    def __str__(self) -> str:
        return f"{self.what} on {self.key.channel}"


def message_of(transfer: Transfer) -> Message | None:
    """The message that `transfer` launches; None for a wait."""
    if transfer.op in COUNT_OPS:
        return Message(True, transfer.key)
    return Message(False, transfer.key) if transfer.op in POST_OPS else None


def run_rendezvous(programs: ProgramSet, *, serial: bool) -> None:
    """Run `programs` to their end. Raises ScheduleError, naming where each group stands, if they
    come to a standstill.

    A post of a send blocks until the receive is posted, counts block until they have moved, and so
    does a wait. A message moves when it heads the queue of both its groups; a group has a queue per
    channel, or with `serial` one for everything, in which a `reduce_counts` also takes its place.
    All workers of a group run one program, so a grouped transfer arrives when both groups are
    there.
    """
    runners = _runners(programs, serial=serial)
    while not all(runner.done for runner in runners):
        progress = False
        for runner in runners:
            while not runner.done and _may_pass(runner):
                runner.at += 1
                progress = True
        if not progress:
            stuck = "\n".join(
                f"  {runner.program.group} stands at {runner.at}: {runner.current}"
                for runner in runners
                if not runner.done
            )
            raise ScheduleError(f"deadlock\n{stuck}")


class _Way(Enum):
    """When an instruction goes through."""

    ALWAYS = auto()
    LINE_IS_EMPTY = auto()
    LAUNCHED = auto()
    RECEIVER_LAUNCHED = auto()
    MOVED = auto()
    MOVED_BEFORE = auto()  # the same, and launches nothing itself


@dataclass(slots=True, eq=False)
class _Meeting:
    """One message, as all instructions that are about it see it."""

    channel: int
    """Which queue of its groups it is in."""
    ends: tuple["_Runner", ...]
    """The groups that meet: two, or one with itself in an all-to-all; the receiver is last."""
    launched: list["_Runner"] = field(default_factory=list)
    moved: bool = False


@dataclass(slots=True, eq=False)
class _Runner:
    """One group: its place in its program and its queues of messages."""

    program: Program
    at: int = 0
    steps: list[tuple[_Way, _Meeting | None]] = field(default_factory=list)
    """What each instruction waits for."""
    queues: dict[int, deque[_Meeting]] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.at == len(self.program.instructions)

    @property
    def current(self) -> Instruction:
        return self.program.instructions[self.at]

    def at_head(self, meeting: _Meeting) -> bool:
        """Whether the message may move next."""
        queue = self.queues.get(meeting.channel)
        return queue is not None and len(queue) > 0 and queue[0] is meeting


def _runners(programs: ProgramSet, *, serial: bool) -> list[_Runner]:
    """Number channels and look every message up once: the run itself meets them many times."""
    host = programs.spec.layout.host
    runners = {program.group: _Runner(program) for program in programs.programs}
    channels: dict[Channel, tuple[int, tuple[_Runner, ...]]] = {}
    meetings: dict[Message, _Meeting] = {}

    def meeting(message: Message) -> _Meeting:
        found = meetings.get(message)
        if found is None:
            channel = message.key.channel
            if channel not in channels:
                hosts = dict.fromkeys((host(channel.source), host(channel.target)))
                queue = 0 if serial else len(channels)
                channels[channel] = (queue, tuple(runners[group] for group in hosts))
            found = meetings[message] = _Meeting(*channels[channel])
        return found

    for runner in runners.values():
        for instruction in runner.program.instructions:
            way, message = _step(instruction, serial=serial)
            runner.steps.append((way, None if message is None else meeting(message)))
    return list(runners.values())


def _step(instruction: Instruction, *, serial: bool) -> tuple[_Way, Message | None]:
    """When `instruction` goes through, and the message that it is about."""
    if not isinstance(instruction, Transfer):
        meets = isinstance(instruction, Compute) and instruction.op is Op.REDUCE_COUNTS
        return (_Way.LINE_IS_EMPTY if meets and serial else _Way.ALWAYS), None
    message = message_of(instruction)
    if message is None:
        return _Way.MOVED_BEFORE, Message(False, instruction.key)
    if message.counts:
        return _Way.MOVED, message
    receives = instruction.op is Op.POST_RECV
    return (_Way.LAUNCHED if receives else _Way.RECEIVER_LAUNCHED), message


def _may_pass(runner: _Runner) -> bool:
    """Whether the runner's next instruction goes through now; launches its message."""
    way, meeting = runner.steps[runner.at]
    if meeting is None:
        return way is _Way.ALWAYS or not any(runner.queues.values())
    if way is _Way.MOVED_BEFORE:
        return meeting.moved
    if runner not in meeting.launched:
        meeting.launched.append(runner)
        runner.queues.setdefault(meeting.channel, deque()).append(meeting)
        _move_from(meeting)
    if way is _Way.MOVED:
        return meeting.moved
    return way is _Way.LAUNCHED or meeting.ends[-1] in meeting.launched


def _move_from(meeting: _Meeting | None) -> None:
    """Move `meeting` if it can move now, and then all that stood behind it."""
    ready = [meeting]
    while ready:
        one = ready.pop()
        if one is None or one.moved or not all(end.at_head(one) for end in one.ends):
            continue
        one.moved = True
        for end in one.ends:
            queue = end.queues[one.channel]
            queue.popleft()
            ready.append(queue[0] if queue else None)
