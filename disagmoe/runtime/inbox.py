"""Receives of one worker, on two threads for each group that sends to it, ahead of the program.

A receive can be posted only when its size is known, and that is told by a message; were it the
program's thread that waits for it, transfers would begin between two ops only. One thread of a lane
posts what comes from its group in the program's order, so nothing is decided at run time; the other
waits for what that brings, so that the next receive is posted while the payload before is still
under way and the network never pauses between two.
"""

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import torch

from disagmoe.errors import TransportError
from disagmoe.runtime.channels import channel_name, counts_name
from disagmoe.runtime.context import Context
from disagmoe.runtime.side import Counts, SideOps
from disagmoe.runtime.slots import SlotTable
from disagmoe.runtime.trace import Hop
from disagmoe.runtime.wire import HEADER_LENGTH, Incoming, Outgoing, header
from disagmoe.schedule.gateways import peers
from disagmoe.schedule.ir import Op, Program, SlotKind, Transfer, TransferKey, payload
from disagmoe.schedule.layout import Group, Side
from disagmoe.transport.base import TransportChannel, Work

_TO_EXPERTS = (SlotKind.ROWS, SlotKind.FAN_ROWS)


def moved(key: TransferKey) -> str:
    """What a transfer moves on its channel, as hops call it."""
    return f"L{key.layer} m{key.mb}"


def hop_until_now(key: TransferKey, sends: bool, nbytes: int, started_s: float) -> Hop:
    """The end of a transfer that was posted at `started_s` and is complete now."""
    return Hop(str(key.channel), moved(key), sends, nbytes, started_s, time.perf_counter())


class Arrival(Protocol):
    """A payload that comes."""

    def result(self) -> Incoming:
        """Return it once it may be read. Raises TransportError when it fails."""


Arrivals = dict[TransferKey, Arrival]


class Receiver(Protocol):
    """How a worker receives."""

    def start(self, program: Program) -> Arrivals:
        """Begin with `program`; return all that it will receive."""

    def post(self, transfer: Transfer) -> None:
        """The program has come to the post of a receive or an exchange."""

    def release(self, incoming: Incoming) -> None:
        """The program has freed a payload."""

    def check(self) -> None:
        """Raise TransportError if a transfer has failed unnoticed."""

    def close(self) -> None:
        """End what waits, as soon as that has come or failed."""


@dataclass(frozen=True, slots=True)
class Ports:
    """A worker's channels as its transfers use them: roles in, workers out."""

    context: Context
    channels: Mapping[str, TransportChannel]
    rows: dict[str, int] = field(default_factory=dict)
    """By hop: rows announced by this worker on their way to experts, those for itself included. All
    transfers of a hop are posted by one thread."""

    def post(
        self,
        name: str,
        sends: Mapping[str, torch.Tensor],
        recvs: Mapping[str, torch.Tensor],
        label: str,
    ) -> Work:
        """Post on channel `name`; peers are named by their roles."""
        process_of = self.context.process_of
        return self.channels[name].post(
            {process_of[peer]: tensor for peer, tensor in sends.items()},
            {process_of[peer]: tensor for peer, tensor in recvs.items()},
            label,
        )

    def post_payload(
        self,
        key: TransferKey,
        sends: Mapping[str, torch.Tensor],
        recvs: Mapping[str, torch.Tensor],
    ) -> Work:
        """Post the payload of `key`."""
        name = channel_name(key.channel, self.context.worker.ring)
        return self.post(name, sends, recvs, moved(key))

    def post_counts(
        self, key: TransferKey, outgoing: Outgoing | None, headers: Mapping[str, torch.Tensor]
    ) -> Work:
        """Announce `outgoing`, and receive the announcements of others into `headers`."""
        counts = {} if outgoing is None else outgoing.counts
        if counts and payload(key.channel) in _TO_EXPERTS:
            hop = key.channel.hop
            self.rows[hop] = self.rows.get(hop, 0) + sum(rows for rows, _ in counts.values())
        sends = {peer: header(key.layer, key.mb, *count) for peer, count in counts.items()}
        name = counts_name(key.channel, self.context.worker.ring)
        return self.post(name, sends, headers, moved(key))


_POSTED = 2
"""Receives of a lane that are under way at once; each takes memory for its payload."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A receive under way."""

    incoming: Incoming
    work: Work
    at_s: float


class Lane:
    """The two threads for what comes from one group."""

    def __init__(self, source: Group) -> None:
        self.posts = ThreadPoolExecutor(1, thread_name_prefix=f"{source}> posts")
        self.waits = ThreadPoolExecutor(1, thread_name_prefix=f"{source}> waits")
        self.room = threading.Semaphore(_POSTED)
        self.free_s = 0.0
        """When the last payload had arrived."""

    def leave(self, arrival: "Future[Incoming]") -> None:
        """Make room for another receive: `arrival` has come, has failed or will never begin. One
        that failed before it took room leaves too much, on a lane whose program has failed."""
        self.room.release()

    def close(self) -> None:
        """End the threads as soon as what they wait for has come or failed."""
        self.posts.shutdown(wait=False, cancel_futures=True)
        self.waits.shutdown(wait=False, cancel_futures=True)


class Inbox:
    """Starts a program's receives and all-to-alls, and hands over what has arrived."""

    def __init__(
        self,
        context: Context,
        sides: Mapping[Side, SideOps],
        slots: SlotTable,
        ports: Ports,
        hops: list[Hop],
    ) -> None:
        """`hops` is told of every transfer that has arrived."""
        self._context = context
        self._sides = sides
        self._slots = slots
        self._ports = ports
        self._hops = hops
        self._lanes: dict[Group, Lane] = {}

    def start(self, program: Program) -> Arrivals:
        """Begin to receive all that `program` receives."""
        arrivals: dict[TransferKey, Future[Incoming]] = {}
        for instruction in program.instructions:
            if not isinstance(instruction, Transfer):
                continue
            if instruction.op is Op.POST_RECV:
                task = self._receive
            elif instruction.op is Op.EXCHANGE:
                task = self._exchange
            else:
                continue
            key = instruction.key
            lane = self._lane(key.channel.source)
            posted = lane.posts.submit(task, key, lane)
            arrivals[key] = lane.waits.submit(self._arrive, key, posted, lane)
            arrivals[key].add_done_callback(lane.leave)
        return dict(arrivals)

    def post(self, transfer: Transfer) -> None:
        """See Receiver.post: a lane has begun it."""

    def release(self, incoming: Incoming) -> None:
        """See Receiver.release: memory is the allocator's."""

    def check(self) -> None:
        """See Receiver.check: whoever waits is told."""

    def close(self) -> None:
        """End the threads as soon as what they wait for has come or failed."""
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()

    def _lane(self, source: Group) -> Lane:
        if source not in self._lanes:
            self._lanes[source] = Lane(source)
        return self._lanes[source]

    def _receive(self, key: TransferKey, lane: Lane) -> Posted:
        counts = None
        if self._context.spec.sends_counts(key.channel):
            counts = self._exchange_counts(key, None)
        return self._post(key, {}, counts, lane)

    def _exchange(self, key: TransferKey, lane: Lane) -> Posted:
        outgoing = self._slots.wait_for(key.sent, Outgoing)
        counts = None
        if self._context.spec.sends_counts(key.channel):
            counts = self._exchange_counts(key, outgoing)
        return self._post(key, outgoing.buffers, counts, lane)

    def _post(
        self,
        key: TransferKey,
        sends: Mapping[str, torch.Tensor],
        counts: Counts | None,
        lane: Lane,
    ) -> Posted:
        expected = self._sides[key.channel.target.side].expected(key, counts)
        lane.room.acquire()  # ends: what is under way arrives or fails
        incoming = Incoming.allocate(expected, self._context.device)
        at_s = time.perf_counter()
        return Posted(incoming, self._ports.post_payload(key, sends, incoming.buffers), at_s)

    def _arrive(self, key: TransferKey, future: "Future[Posted]", lane: Lane) -> Incoming:
        posted = future.result()
        posted.work.wait()
        nbytes = sum(len(buffer) for buffer in posted.incoming.buffers.values())
        # payloads of a lane come one after the other, however early they are posted
        hop = hop_until_now(key, False, nbytes, max(posted.at_s, lane.free_s))
        lane.free_s = hop.end_s
        self._hops.append(hop)
        return posted.incoming

    def _exchange_counts(self, key: TransferKey, outgoing: Outgoing | None) -> Counts:
        layout, me = self._context.layout, self._context.worker
        members = peers(layout, key.channel, me, sends=False)
        headers = {str(peer): torch.empty(HEADER_LENGTH, dtype=torch.int64) for peer in members}
        self._ports.post_counts(key, outgoing, headers).wait()
        return check_counts(key, headers, str(self._context.worker))


def check_counts(key: TransferKey, headers: Mapping[str, torch.Tensor], me: str) -> Counts:
    """Read what each peer has announced. Raises TransportError for another transfer than `key`."""
    counts: Counts = {}
    for peer, values in headers.items():
        layer, mb, rows, pairs = values.tolist()
        if (layer, mb) != (key.layer, key.mb) or rows < 0 or pairs < 0:
            raise TransportError(
                f"{key}: {peer} announced L{layer} m{mb} with {rows} rows and {pairs} pairs; "
                f"{me} expected L{key.layer} m{key.mb}"
            )
        counts[peer] = (rows, pairs)
    return counts
