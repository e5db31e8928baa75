"""A run of all programs without time, in which every transfer is a meeting: finds deadlocks.

NCCL promises no more than this run assumes, and a buffer of gloo that hides a bad order is not in
it.
"""

from collections import deque
from dataclasses import dataclass, field

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
from disagmoe.schedule.layout import Channel, Group, Layout


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
    runners = {program.group: _Runner(program, serial) for program in programs.programs}
    state = _Meetings(runners, programs.spec.layout)
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


@dataclass(slots=True)
class _Runner:
    """One group: its place in its program and its queues of messages."""

    program: Program
    serial: bool
    at: int = 0
    launched: set[Message] = field(default_factory=set)
    queues: dict[Channel | None, deque[Message]] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.at == len(self.program.instructions)

    @property
    def current(self) -> Instruction:
        return self.program.instructions[self.at]

    def launch(self, message: Message) -> None:
        """Queue the message."""
        self.launched.add(message)
        self.queues.setdefault(self._queue(message), deque()).append(message)

    def heads(self) -> list[Message]:
        """The messages that may move next, one per queue."""
        return [queue[0] for queue in self.queues.values() if queue]

    def at_head(self, message: Message) -> bool:
        """Whether `message` may move next."""
        queue = self.queues.get(self._queue(message))
        return queue is not None and len(queue) > 0 and queue[0] == message

    def move(self, message: Message) -> None:
        """Take the moved message off its queue."""
        self.queues[self._queue(message)].popleft()

    def _queue(self, message: Message) -> Channel | None:
        return None if self.serial else message.key.channel


@dataclass(slots=True)
class _Meetings:
    """What both ends have done together."""

    runners: dict[Group, _Runner]
    layout: Layout
    moved: set[Message] = field(default_factory=set)
    met: dict[Channel, tuple[_Runner, ...]] = field(default_factory=dict)

    def ends(self, channel: Channel) -> tuple[_Runner, ...]:
        """The groups that meet on `channel`: two, or one with itself in an all-to-all."""
        if channel not in self.met:
            hosts = (self.layout.host(channel.source), self.layout.host(channel.target))
            self.met[channel] = tuple(self.runners[host] for host in dict.fromkeys(hosts))
        return self.met[channel]

    def move_from(self, runner: _Runner) -> None:
        """Move all that can move now, starting at `runner`, whose queues have just changed."""
        changed = [runner]
        while changed:
            for message in changed.pop().heads():
                ends = self.ends(message.key.channel)
                if all(end.at_head(message) for end in ends):
                    for end in ends:
                        end.move(message)
                    self.moved.add(message)
                    changed.extend(ends)


def _may_pass(runner: _Runner, state: _Meetings) -> bool:
    """Whether the runner's next instruction goes through now; launches its message."""
    instruction = runner.current
    if isinstance(instruction, Compute) and instruction.op is Op.REDUCE_COUNTS:
        return not (runner.serial and runner.heads())
    if not isinstance(instruction, Transfer):
        return True
    message = message_of(instruction)
    if message is None:
        return Message(False, instruction.key) in state.moved
    if message not in runner.launched:
        runner.launch(message)
        state.move_from(runner)
    if message.counts:
        return message in state.moved
    return instruction.op is Op.POST_RECV or (
        message in state.ends(message.key.channel)[-1].launched
    )
