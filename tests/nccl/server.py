"""Where stand-in devices meet: matches sends with receives, and finds what would hang for ever.

Every device is serial: it starts its operations in launch order and one after the other, which is
the least that NCCL promises for several communicators on a device. A cycle of devices that wait for
each other is then certain, and is reported at once.
"""

import contextlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener

ID_BYTES = 128
INVALID_USAGE, REMOTE_ERROR = 5, 6


@dataclass(eq=False)
class Part:
    """One end of one message."""

    op: "Op"
    verb: str
    peer: int
    count: int
    dtype: int
    data: bytes | None
    done: bool = False


@dataclass(eq=False)
class Op:
    """One group that a device has started."""

    device: str
    number: int
    comm: "Comm"
    rank: int
    parts: list[Part] = field(default_factory=list)

    def __str__(self) -> str:
        waiting = ", ".join(
            f"{part.verb} with {self.comm.devices.get(part.peer, part.peer)}"
            for part in self.parts
            if not part.done
        )
        place = f"operation {self.number} on communicator {self.comm.number}"
        return f"{self.device} in {place} ({waiting})"


@dataclass(eq=False)
class Comm:
    """One communicator."""

    number: int
    size: int
    devices: dict[int, str] = field(default_factory=dict)
    edges: dict[tuple[int, int], tuple[deque[Part], deque[Part]]] = field(default_factory=dict)
    broken: bool = False


class StandinServer:
    """One run's meeting point; its address goes to every device."""

    def __init__(self) -> None:
        self._listener = Listener(("127.0.0.1", 0), backlog=64, authkey=b"stand-in")
        self.address: tuple[str, int] = self._listener.address  # type: ignore[assignment]
        self._lock = threading.RLock()
        self._ids = itertools.count()
        self._comms: dict[bytes, Comm] = {}
        self._links: dict[str, Connection] = {}
        self._current: dict[str, Op] = {}
        self._open: set[str] = set()
        self.violations: list[str] = []
        self.most_parts = 0
        """Of an operation so far."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                link = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: Connection) -> None:
        device = link.recv()
        with self._lock:
            self._links[device] = link
        try:
            while True:
                kind, *rest = link.recv()
                with self._lock:
                    getattr(self, f"_on_{kind}")(device, *rest)
        except (EOFError, OSError):
            with self._lock:
                self._gone(device)

    def _gone(self, device: str) -> None:
        self._current.pop(device, None)
        for uid, comm in self._comms.items():
            if device in comm.devices.values():
                self._break(uid, comm, REMOTE_ERROR, f"{device} has ended", but=device)

    def _tell(self, device: str, *message: object) -> None:
        with contextlib.suppress(OSError):  # the thread that serves it will notice
            self._links[device].send(message)

    def _on_opening(self, device: str) -> None:
        self._open.discard(device)

    def _on_opened(self, device: str) -> None:
        """From now on `device` uses no edge that has carried no message yet."""
        self._open.add(device)

    def _on_id(self, device: str) -> None:
        uid = next(self._ids).to_bytes(8, "little") + os.urandom(ID_BYTES - 8)
        self._tell(device, "id", uid)

    def _on_join(self, device: str, uid: bytes, size: int, rank: int) -> None:
        comm = self._comms.setdefault(uid, Comm(len(self._comms), size))
        if comm.size != size or rank in comm.devices or not 0 <= rank < size:
            self._violate(uid, comm, f"{device} joins as rank {rank} of {size}: {comm}")
            return
        comm.devices[rank] = device
        if len(comm.devices) == size:
            for member in comm.devices.values():
                self._tell(member, "joined", uid)

    def _on_start(
        self, device: str, number: int, uid: bytes, rank: int, parts: list[tuple[object, ...]]
    ) -> None:
        comm = self._comms[uid]
        op = Op(device, number, comm, rank)
        op.parts = [Part(op, *part) for part in parts]  # type: ignore[arg-type]
        self.most_parts = max(self.most_parts, len(parts))
        assert device not in self._current, f"{device} is not serial"
        self._current[device] = op
        for part in op.parts:
            edge = (rank, part.peer) if part.verb == "send" else (part.peer, rank)
            if device in self._open and edge not in comm.edges:
                # NCCL would connect it in the middle of a step
                self._violate(uid, comm, f"{op} uses an edge that was never warmed")
                return
            sends, recvs = comm.edges.setdefault(edge, (deque(), deque()))
            (sends if part.verb == "send" else recvs).append(part)
            while sends and recvs and not comm.broken:  # a broken one moves nothing more
                if not self._match(uid, comm, sends.popleft(), recvs.popleft()):
                    return
        if device in self._current and (cycle := self._cycle(device)):
            text = "deadlock: " + ", which waits for ".join(str(self._current[d]) for d in cycle)
            for each in {self._current[d].comm.number for d in cycle}:
                broken, comm = next((u, c) for u, c in self._comms.items() if c.number == each)
                self._violate(broken, comm, text)

    def _match(self, uid: bytes, comm: Comm, send: Part, recv: Part) -> bool:
        if (send.count, send.dtype) != (recv.count, recv.dtype):
            self._violate(
                uid,
                comm,
                f"{send.op.device} sends {send.count} of type {send.dtype}, {recv.op.device} "
                f"receives {recv.count} of type {recv.dtype}",
            )
            return False
        recv.data, send.data = send.data, None
        send.done = recv.done = True
        for op in {send.op, recv.op}:
            if all(part.done for part in op.parts):
                self._current.pop(op.device, None)
                came = [(at, part.data) for at, part in enumerate(op.parts) if part.verb == "recv"]
                self._tell(op.device, "done", op.number, came)
        return True

    def _waits_for(self, device: str) -> Iterator[str]:
        op = self._current.get(device)
        for part in op.parts if op else ():
            peer = None if part.done else op.comm.devices.get(part.peer)
            if peer in self._current:
                yield peer

    def _cycle(self, start: str) -> list[str]:
        """Devices from `start` to itself, each waiting for the next; [] if there is no such way."""
        ways = [[start]]
        seen: set[str] = set()
        while ways:
            way = ways.pop()
            for peer in self._waits_for(way[-1]):
                if peer == start:
                    return way
                if peer not in seen:
                    seen.add(peer)
                    ways.append([*way, peer])
        return []

    def _violate(self, uid: bytes, comm: Comm, text: str) -> None:
        if text not in self.violations:
            self.violations.append(text)
        self._break(uid, comm, INVALID_USAGE, text)

    def _break(self, uid: bytes, comm: Comm, status: int, text: str, but: str = "") -> None:
        if comm.broken:
            return
        comm.broken = True
        for member in comm.devices.values():
            if member != but:
                self._tell(member, "broken", uid, status, text)

    def _on_abort(self, device: str, uid: bytes) -> None:
        comm = self._comms[uid]
        op = self._current.get(device)
        if op is not None and op.comm is comm:
            del self._current[device]
        self._break(uid, comm, REMOTE_ERROR, f"{device} has aborted", but=device)
