"""Channels over NCCL: a communicator and a stream each, launched in program order by one thread.

See README.md for NCCL's rules and how they are kept.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.distributed import DistError, PrefixStore, Store  # type: ignore[attr-defined]

from disagmoe.errors import TransportError
from disagmoe.transport.base import ChannelSpec, Transport, TransportChannel, Work
from disagmoe.transport.nccl_book import Book, Entry, disagreements
from disagmoe.transport.nccl_groups import MOST_CALLS, divide
from disagmoe.transport.nccl_launch import Flight, LaunchThread, Watch
from disagmoe.transport.nccl_library import Communicator, Nccl
from disagmoe.transport.parts import check_parts, copy_self_part, describe
from disagmoe.transport.rendezvous import declare, meet
from disagmoe.transport.streams import BufferRing, Event, Stream, Streams

log = logging.getLogger(__name__)

_WORLD = "world communicator"
_PEERS_S = 1.0
"""Between questions whether another worker has failed."""
_BOOKS_S = 3.0
"""How long a worker that has failed waits for the books of others: they notice within _PEERS_S."""
_FAREWELL_S = 2.0
"""How long a worker that leaves waits for the others, whose last receives may be under way."""


@dataclass(frozen=True, slots=True)
class _Link:
    """A communicator, its stream, and the ranks of its members."""

    communicator: Communicator
    stream: Stream
    ranks: Mapping[str, int]


class NcclWork:
    """A grouped transfer under way, or one without messages."""

    def __init__(self, launches: LaunchThread, flight: Flight | None) -> None:
        self._launches = launches
        self.flight = flight

    def wait(self) -> None:
        """See Work.wait, except that the device waits and not the host, where it can: what it is
        given from now on begins after the transfer. Raises TransportError for a failure that is
        known by now; `Launches.check` tells of later ones."""
        if self.flight is not None:
            self._launches.wait(self.flight)


class NcclChannel:
    """One channel as one worker sees it."""

    def __init__(self, spec: ChannelSpec, me: str, link: _Link, transport: "NcclTransport") -> None:
        self._spec = spec
        self._me = me
        self._link = link
        self._transport = transport
        self._posts = 0

    def post(
        self,
        sends: Mapping[str, torch.Tensor],
        recvs: Mapping[str, torch.Tensor],
        label: str = "",
    ) -> NcclWork:
        """See TransportChannel.post; tensors must be on the worker's device. All channels of a
        worker are posted to by one thread, in the one order of its program."""
        check_parts(self._spec, self._me, sends, recvs)
        outgoing, incoming = self._messages(sends), self._messages(recvs)
        transport, post = self._transport, self._posts
        self._posts += 1
        entry = transport.enter(self._spec.name, post, label, outgoing, incoming)
        copy_self_part(self._me, sends, recvs)
        if not entry.messages:
            return NcclWork(transport.launch_thread, None)
        flight = Flight(
            entry,
            self._link.stream,
            transport.ready(outgoing, incoming),
            lambda: transport.call_groups(self._link, outgoing, incoming),
            (*outgoing.values(), *incoming.values()),
        )
        transport.launch_thread.launch(flight)
        return NcclWork(transport.launch_thread, flight)

    def _messages(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The parts that are messages, in the order of ranks."""
        device = self._transport.device
        peers = [peer for peer, t in tensors.items() if peer != self._me and t.numel()]
        for peer in peers:
            if tensors[peer].device != device:
                raise TransportError(
                    f"channel {self._spec.name}: the part of {self._me} and {peer} is on "
                    f"{tensors[peer].device}; this channel carries tensors on {device}"
                )
        return {peer: tensors[peer] for peer in sorted(peers, key=self._link.ranks.__getitem__)}

    def warm(self) -> None:
        """Connect all edges, which NCCL does at the first message, and check who is at the ends."""
        me, device, ranks = self._me, self._transport.device, self._link.ranks
        own = torch.full((1,), ranks[me], dtype=torch.int32, device=device)
        sends = dict.fromkeys(self._spec.targets if me in self._spec.sources else (), own)
        came = {
            peer: torch.full((1,), -1, dtype=torch.int32, device=device)
            for peer in (self._spec.sources if me in self._spec.targets else ())
        }
        sends.pop(me, None)
        came.pop(me, None)
        self.post(sends, came, "warm-up").wait()
        for peer, rank in came.items():
            if rank.item() != ranks[peer]:
                raise TransportError(
                    f"channel {self._spec.name}: {me} expected {peer} with rank {ranks[peer]} at "
                    f"the other end and heard rank {rank.item()}"
                )
        self._posts = 0


class NcclTransport(Watch):
    """The NCCL backend of worker `me`.

    `store` is the run's store, a client that nobody else uses; `host` carries the channels whose
    tensors are in host memory. `epoch` counts restarts of the run's workers. Opening must succeed
    within `start_timeout_s`; a transfer may stand still for `timeout_s`.

    Channels of rows have a communicator each, those among the workers of one group included
    (all-to-alls, and both ways inside hosts); meshes (sums) share one among all workers.
    """

    def __init__(
        self,
        me: str,
        store: Store,
        host: Transport,
        streams: Streams,
        nccl: Nccl,
        *,
        epoch: int,
        timeout_s: float,
        start_timeout_s: float,
    ) -> None:
        self._me = me
        self._meeting = PrefixStore(f"e{epoch}", store)
        self._store = PrefixStore("nccl", self._meeting)
        self._host = host
        self._streams = streams
        self._nccl = nccl
        self._start_timeout_s = start_timeout_s
        self._everyone: tuple[str, ...] = (me,)
        self._links: dict[str, _Link] = {}
        self._names: set[str] = set()
        self._book = Book(me)
        self._poster: tuple[int, str] | None = None
        self._asked_s = 0.0
        self._closed = False
        self._ring = BufferRing(
            lambda nbytes: torch.empty(nbytes, dtype=torch.uint8, device=streams.device),
            streams.now,
        )
        self.launch_thread = LaunchThread(me, streams, self, timeout_s)

    @property
    def launches(self) -> "NcclTransport":
        """See Transport.launches: itself."""
        return self

    @property
    def device(self) -> torch.device:
        """Where tensors of channels are."""
        return self._streams.device

    @property
    def buffer_bytes(self) -> int:
        """Memory of the buffers that receives use."""
        return self._ring.nbytes

    def take(self, nbytes: int) -> torch.Tensor:
        """See Launches.take."""
        return self._ring.take(nbytes)

    def give_back(self, buffer: torch.Tensor) -> None:
        """See Launches.give_back."""
        self._ring.give_back(buffer)

    def check(self) -> None:
        """See Launches.check."""
        self.launch_thread.check()

    def mark(self) -> Event:
        """See Launches.mark."""
        return self._streams.now()

    def flown(self, work: Work) -> tuple[Event, Event] | None:
        """See Launches.flown."""
        assert isinstance(work, NcclWork)
        flight = work.flight
        if flight is None:
            return None
        assert flight.began is not None
        assert flight.done is not None
        return flight.began, flight.done

    def open(self, specs: Sequence[ChannelSpec]) -> dict[str, TransportChannel]:
        """See Transport.open."""
        declare(self._meeting, self._me, "nccl")
        opened = self._host.open([spec for spec in specs if spec.on_host])
        self._everyone = tuple(dict.fromkeys(name for spec in specs for name in spec.members))
        world = self._join(ChannelSpec(_WORLD, self._everyone, self._everyone))
        for spec in specs:
            if spec.on_host or self._me not in spec.members:
                continue
            if spec.name in self._names:
                raise TransportError(f"channel {spec.name} is open already on {self._me}")
            self._names.add(spec.name)
            if spec.mesh:
                meet(self._meeting, spec, self._me, self._start_timeout_s)
            channel = NcclChannel(spec, self._me, world if spec.mesh else self._join(spec), self)
            channel.warm()
            opened[spec.name] = channel
        self._poster = None  # whoever posts first in the run
        return opened

    def _join(self, spec: ChannelSpec) -> _Link:
        """Make the communicator of `spec` with all its members."""
        if spec.name in self._links:
            return self._links[spec.name]
        meet(self._meeting, spec, self._me, self._start_timeout_s)
        store = PrefixStore(spec.name, self._store)
        ranks = {name: rank for rank, name in enumerate(spec.members)}
        where = f"channel {spec.name}: {self._me} joins {', '.join(spec.members)}"

        def join() -> _Link:
            if ranks[self._me] == 0:
                store.set("id", self._nccl.unique_id().hex())
            unique_id = bytes.fromhex(bytes(store.get("id")).decode())
            made = self._nccl.communicator(len(ranks), unique_id, ranks[self._me])
            return _Link(made, self._streams.open(), ranks)

        try:
            link = self.launch_thread.run(join, self._start_timeout_s, where)
        except DistError as error:
            raise TransportError(f"{where}: no id comes: {error}") from error
        except TransportError as error:
            raise TransportError(f"{where}: {error}") from error
        self._links[spec.name] = link
        return link

    def enter(
        self,
        channel: str,
        post: int,
        label: str,
        sends: Mapping[str, torch.Tensor],
        recvs: Mapping[str, torch.Tensor],
    ) -> Entry:
        """Write a post into the book. Raises TransportError where it must not be launched."""
        thread = threading.get_ident(), threading.current_thread().name
        self._poster = self._poster or thread
        entry = self._book.write(
            channel,
            post,
            label,
            {peer: describe(tensor) for peer, tensor in sends.items()},
            {peer: describe(tensor) for peer, tensor in recvs.items()},
        )
        if thread != self._poster:
            raise TransportError(
                f"{entry.where(self._me)}: posted by thread {thread[1]}, but {self._poster[1]} is "
                "the launch thread of this worker; NCCL needs one thread and one order"
            )
        if self._closed:
            raise TransportError(f"{entry.where(self._me)}: the channel is closed")
        return entry

    def ready(
        self, sends: Mapping[str, torch.Tensor], recvs: Mapping[str, torch.Tensor]
    ) -> tuple[Event, ...]:
        """What a transfer must begin after: what is sent has been computed, what is received into
        has been read."""
        rings = [self._ring.after(tensor) for tensor in recvs.values()]
        events = [event for event in rings if event is not None]
        if sends or len(events) < len(rings):
            return (*events, self._streams.now())
        return tuple(events)

    def call_groups(
        self, link: _Link, sends: Mapping[str, torch.Tensor], recvs: Mapping[str, torch.Tensor]
    ) -> None:
        """Launch a transfer on the stream of `link`, as one group if NCCL can do that. In the
        launch thread."""
        nccl = self._nccl
        for targets, sources in divide(self._me, sends, recvs, link.ranks, MOST_CALLS):
            nccl.call("start a group", nccl.group_start)
            for target in targets:
                self._call(link, link.communicator.send, target, sends[target])
            for source in sources:
                self._call(link, link.communicator.recv, source, recvs[source])
            nccl.call("launch a group", nccl.group_end)

    def _call(
        self, link: _Link, call: Callable[..., object], peer: str, tensor: torch.Tensor
    ) -> None:
        code, rank, stream = self._nccl.dtype(tensor.dtype), link.ranks[peer], link.stream.handle
        what = f"{call.__name__} {describe(tensor)} with {peer}"
        self._nccl.call(what, call, tensor.data_ptr(), tensor.numel(), code, rank, stream)

    def health(self) -> None:
        """See Watch.health."""
        for name, link in self._links.items():
            try:
                self._nccl.call("go on", link.communicator.check_async_error)
            except TransportError as error:
                raise TransportError(f"channel {name}, worker {self._me}: {error}") from error
        now = time.monotonic()
        if now - self._asked_s > _PEERS_S and self._links:
            self._asked_s = now
            if self._store.check(["failed"]):
                raise TransportError(f"another worker has failed: {self._read('failed')}")

    def _read(self, key: str) -> str:
        return bytes(self._store.get(key)).decode()

    def explain(self, reason: str, unfinished: Sequence[Entry]) -> str:
        """See Watch.explain: compare books with the others."""
        try:
            self._store.set(f"book/{self._me}", self._book.encode())
            self._store.compare_set("failed", "", reason)
            others = self._other_books()
            left = {name for name in others if self._has_left(name)}
        except DistError as error:  # the store's host may be what has failed
            log.warning("%s: no books of other workers: %s", self._me, error)
            return reason
        gone = [
            f"{entry.where(self._me)}: {name} has closed its transport"
            for entry in unfinished
            for name in sorted(left & entry.peers(self._me))
        ]
        found = disagreements(self._book, unfinished, others)
        waiting = [f"{entry.where(self._me)} is not complete" for entry in unfinished]
        return "\n  ".join(dict.fromkeys([*gone, *found[:8], reason, *waiting[:8]]))

    def _other_books(self) -> dict[str, Book]:
        names = [name for name in self._everyone if name != self._me]
        deadline = time.monotonic() + _BOOKS_S
        while time.monotonic() < deadline:
            if all(self._store.check([f"book/{name}"]) for name in names):
                break
            time.sleep(0.05)
        return {
            name: Book.decode(self._read(f"book/{name}"))
            for name in names
            if self._store.check([f"book/{name}"])
        }

    def _has_left(self, name: str) -> bool:
        return bool(self._store.check([f"left/{name}"]))

    def abort(self) -> None:
        """See Watch.abort. Aborts and never destroys: that is a collective, and hangs where a peer
        skips it."""
        for link in self._links.values():
            self._nccl.call("abort", link.communicator.abort)

    def close(self) -> None:
        """See Transport.close; from any thread."""
        if not self._closed:
            self._closed = True
            self.launch_thread.close(self._farewell)
            self._host.close()

    def _farewell(self) -> None:
        """Wait a moment for the others, since an abort here may cut off what they still receive."""
        try:
            self._store.set(f"book/{self._me}", self._book.encode())
            self._store.set(f"left/{self._me}", "")
            deadline = time.monotonic() + _FAREWELL_S
            while time.monotonic() < deadline:
                if all(self._has_left(name) for name in self._everyone):
                    return
                time.sleep(0.01)
        except DistError as error:
            log.warning("%s: leaves without the others: %s", self._me, error)
