"""What each worker has launched, so that two ends which disagree can be told where.

NCCL itself compares nothing: transfers whose ends differ in size, type or order stand still or
bring the wrong bytes. Each worker therefore keeps a book of its latest launches, and shows it to
the others when something has failed.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from disagmoe.transport.parts import place

_KEPT = 256  # launches; more than a worker can have under way


@dataclass(frozen=True, slots=True)
class Message:
    """One end of one message, which the other end knows by `edge` and `number`."""

    channel: str
    source: str
    target: str
    number: int
    """Messages from `source` to `target` on the channel before this one."""
    size: str
    """Such as `40 bytes (10 x float32)`."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Equal at both ends."""
        return self.channel, self.source, self.target, self.number


@dataclass(frozen=True, slots=True)
class Entry:
    """One launch."""

    channel: str
    post: int
    label: str
    messages: tuple[Message, ...]

    def where(self, worker: str) -> str:
        """Its place, as errors name it."""
        return place(self.channel, worker, self.post, self.label)

    def peers(self, worker: str) -> set[str]:
        """Who else takes part."""
        return {end for message in self.messages for end in (message.source, message.target)} - {
            worker
        }

    @property
    def what(self) -> str:
        """Its channel and label, as errors of other workers name it."""
        return f"{self.channel} {self.label or f'post {self.post}'}"


class Book:
    """The latest launches of one worker, oldest first."""

    def __init__(self, worker: str, entries: Iterable[Entry] = ()) -> None:
        self.worker = worker
        self.entries = deque(entries, _KEPT)
        self._numbers: dict[tuple[str, str, str], int] = {}

    def write(
        self,
        channel: str,
        post: int,
        label: str,
        sends: Mapping[str, str],
        recvs: Mapping[str, str],
    ) -> Entry:
        """Add a launch; `sends` and `recvs` give the size of the message to or from each peer."""
        messages = [self._message(channel, self.worker, peer, sends[peer]) for peer in sends]
        messages += [self._message(channel, peer, self.worker, recvs[peer]) for peer in recvs]
        entry = Entry(channel, post, label, tuple(messages))
        self.entries.append(entry)
        return entry

    def _message(self, channel: str, source: str, target: str, size: str) -> Message:
        edge = channel, source, target
        number = self._numbers.get(edge, 0)
        self._numbers[edge] = number + 1
        return Message(*edge, number, size)

    def encode(self) -> str:
        """The book as JSON."""
        entries = [asdict(entry) for entry in list(self.entries)]  # the launch thread shows it
        return json.dumps({"worker": self.worker, "entries": entries})

    @classmethod
    def decode(cls, text: str) -> "Book":
        """Read what `encode` has written."""
        read = json.loads(text)
        entries = [
            Entry(
                one["channel"],
                one["post"],
                one["label"],
                tuple(Message(**message) for message in one["messages"]),
            )
            for one in read["entries"]
        ]
        return cls(read["worker"], entries)


def disagreements(mine: Book, unfinished: Sequence[Entry], others: Mapping[str, Book]) -> list[str]:
    """Say in what `mine` differs from the books of `others`, at this worker's `unfinished`
    launches; [] where all agree as far as they go."""
    found: list[str] = []
    for entry in unfinished:
        for message in entry.messages:
            peer = message.target if message.source == mine.worker else message.source
            if peer in others:
                found += _at_message(mine, entry, message, others[peer])
    for other in others.values():
        found += _orders(mine, other)
    return list(dict.fromkeys(found))


def _at_message(mine: Book, entry: Entry, message: Message, other: Book) -> list[str]:
    where = entry.where(mine.worker)
    sends = message.source == mine.worker
    counterpart = "receive" if sends else "send"
    for theirs in other.entries:
        for their in theirs.messages:
            if their.key != message.key:
                continue
            if theirs.label != entry.label:
                return [
                    f"{where}: {other.worker} has {theirs.label or 'no label'} in its post "
                    f"{theirs.post} at this place, so one of them launches in another order"
                ]
            if their.size != message.size:
                verbs = ("sends", "expects") if sends else ("expects", "sends")
                return [
                    f"{where}: {mine.worker} {verbs[0]} {message.size}, {other.worker} {verbs[1]} "
                    f"{their.size}"
                ]
            return []
    last = other.entries[-1].what if other.entries else "nothing"
    return [
        f"{where}: {other.worker} has not launched its {counterpart} of the {message.size}; its "
        f"last launch is {last}"
    ]


def _orders(mine: Book, other: Book) -> list[str]:
    """The first two transfers that both have launched, in different orders."""
    theirs = {
        message.key: at for at, entry in enumerate(other.entries) for message in entry.messages
    }
    before: Entry | None = None
    before_at = -1
    for entry in mine.entries:
        shared = [theirs[message.key] for message in entry.messages if message.key in theirs]
        if not shared:
            continue
        if before is not None and shared[0] < before_at:
            return [
                f"{entry.where(mine.worker)}: {mine.worker} launches {before.what} before "
                f"{entry.what}, {other.worker} after it; NCCL needs one order"
            ]
        before, before_at = entry, shared[0]
    return []
