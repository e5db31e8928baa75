"""A stand-in for NCCL and for a device's streams, over host memory: its rules, and no mercy.

`StandinNccl` has the surface of the module cupy.cuda.nccl that DisagMoE uses, `StandinStreams` that
of a CUDA device. Transfers happen behind the caller's back, in stream order and in launch order;
receive buffers hold garbage until the data is there; a call from a second thread, a group over
several streams or communicators, a use of an aborted communicator and a destroy are errors.
"""

import ctypes
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Client
from typing import Any

import torch

from tests.nccl.server import ID_BYTES

JOIN_S = 60.0
_SIZES = {0: 1, 1: 1, 2: 4, 4: 8, 6: 2, 7: 4, 8: 8, 9: 2}
_KNOWN_TO_CUPY = range(7)


class NcclError(RuntimeError):
    """As cupy's: it has a status, and fails itself on one that it does not know."""

    def __init__(self, status: int, text: str = "") -> None:
        if status not in _KNOWN_TO_CUPY:
            raise KeyError(status)
        super().__init__(f"stand-in status {status} {text}")
        self.status = status


class StandinEvent:
    """A point in a stream."""

    def __init__(self, *, passed: bool = False) -> None:
        self._passed = threading.Event()
        self.time_s = 0.0
        if passed:
            self.set()

    def set(self) -> None:
        self.time_s = time.perf_counter()
        self._passed.set()

    def query(self) -> bool:
        return self._passed.is_set()

    def wait(self, timeout_s: float) -> bool:
        return self._passed.wait(timeout_s)

    def since(self, earlier: "StandinEvent") -> float:
        assert self.query(), "the time of an event that is not passed"
        assert earlier.query(), "the time of an event that is not passed"
        return self.time_s - earlier.time_s


@dataclass(eq=False)
class _Part:
    verb: str
    pointer: int
    count: int
    dtype: int
    peer: int

    @property
    def nbytes(self) -> int:
        return self.count * _SIZES[self.dtype]


@dataclass(eq=False)
class _Op:
    number: int
    comm: "NcclCommunicator"
    stream: int
    parts: list[_Part]
    started: bool = False
    finished: bool = False


class StandinStream:
    """A queue that the device works off."""

    def __init__(self, device: "StandinDevice", handle: int) -> None:
        self.handle = handle
        self._device = device
        self.items: deque[Any] = deque()

    def wait(self, event: StandinEvent) -> None:
        self._device.enqueue(self, ("wait", event))

    def record(self) -> StandinEvent:
        event = StandinEvent()
        self._device.enqueue(self, ("record", event))
        return event


class StandinDevice:
    """What a GPU does by itself: works off streams, in launch order where NCCL is concerned."""

    def __init__(self, name: str, address: tuple[str, int], jitter_s: float = 0.0) -> None:
        """Operations begin up to `jitter_s` late, by chance."""
        self.name = name
        self._link = Client(address, authkey=b"stand-in")
        self._link.send(name)
        self._sending = threading.Lock()
        self.changed = threading.Condition()
        self._streams: dict[int, StandinStream] = {}
        self._launched: deque[_Op] = deque()
        self._numbers = itertools.count()
        self.ids: deque[bytes] = deque()
        self.comms: dict[bytes, NcclCommunicator] = {}
        self._random = random.Random(name)
        self._jitter_s = jitter_s
        self._open = True
        threading.Thread(target=self._hear, daemon=True).start()
        threading.Thread(target=self._work, daemon=True).start()

    def say(self, *message: object) -> None:
        with self._sending:
            self._link.send(message)

    def close(self) -> None:
        self._open = False
        self._link.close()

    def stream(self) -> StandinStream:
        with self.changed:
            handle = 1000 + len(self._streams)
            self._streams[handle] = StandinStream(self, handle)
            return self._streams[handle]

    def enqueue(self, stream: StandinStream, item: Any) -> None:
        with self.changed:
            stream.items.append(item)
            self.changed.notify_all()

    def launch(self, comm: "NcclCommunicator", stream: int, parts: list[_Part]) -> None:
        with self.changed:
            op = _Op(next(self._numbers), comm, stream, parts)
            self._launched.append(op)
            self._streams[stream].items.append(("op", op))
            self.changed.notify_all()

    def abort(self, comm: "NcclCommunicator") -> None:
        """Its operations end, and streams go on with whatever lies in the buffers."""
        with self.changed:
            for op in self._launched:
                op.finished = op.finished or op.comm is comm
            self.changed.notify_all()
        self.say("abort", comm.uid)

    def _hear(self) -> None:
        while self._open:
            try:
                kind, *rest = self._link.recv()
            except (EOFError, OSError, TypeError):
                return
            with self.changed:
                match kind:
                    case "id":
                        self.ids.append(rest[0])
                    case "joined":
                        self.comms[rest[0]].joined = True
                    case "broken":
                        uid, status, text = rest
                        self.comms[uid].trouble = (status, text)
                    case "done":
                        self._finish(*rest)
                self.changed.notify_all()

    def _finish(self, number: int, came: list[tuple[int, bytes]]) -> None:
        for op in self._launched:
            if op.number == number and not op.finished:
                for at, data in came:
                    ctypes.memmove(op.parts[at].pointer, data, len(data))
                op.finished = True

    def _work(self) -> None:
        while self._open:
            with self.changed:
                moved = [self._step(stream) for stream in self._streams.values()]
                if not any(moved):
                    self.changed.wait(0.02)

    def _step(self, stream: StandinStream) -> bool:
        """Do what `stream` can do first; return whether there was something."""
        if not stream.items:
            return False
        kind, value = stream.items[0]
        if kind == "op" and not value.finished:
            if value.started or value is not self._launched[0]:
                return False
            value.started = True
            time.sleep(self._random.random() * self._jitter_s)
            self.say("start", value.number, value.comm.uid, value.comm.rank, self._contents(value))
            return True
        if kind == "op":
            self._launched.remove(value)
        elif kind == "record":
            value.set()
        elif not value.query():
            return False
        stream.items.popleft()
        return True

    def _contents(self, op: _Op) -> list[tuple[object, ...]]:
        """What the server is told of each part; buffers to receive into are spoilt."""
        told = []
        for part in op.parts:
            data = None
            if part.verb == "send":
                data = ctypes.string_at(part.pointer, part.nbytes)
            else:
                ctypes.memset(part.pointer, 0xFF, part.nbytes)
            told.append((part.verb, part.peer, part.count, part.dtype, data))
        return told


@dataclass(eq=False)
class NcclCommunicator:
    """As cupy's."""

    library: "StandinNccl"
    size: int
    uid: bytes
    rank: int
    joined: bool = False
    aborted: bool = False
    trouble: tuple[int, str] | None = None
    injected: int = field(default=0)

    def send(self, pointer: int, count: int, dtype: int, peer: int, stream: int) -> None:
        self._add(_Part("send", pointer, count, dtype, peer), stream)

    def recv(self, pointer: int, count: int, dtype: int, peer: int, stream: int) -> None:
        self._add(_Part("recv", pointer, count, dtype, peer), stream)

    def _add(self, part: _Part, stream: int) -> None:
        self.library.one_thread()
        if self.aborted or not 0 <= part.peer < self.size or part.count <= 0:
            raise NcclError(4, "aborted, no such peer or nothing to move")
        if part.peer == self.rank:
            raise NcclError(5, "a part for oneself")
        self.library.add(self, part, stream)

    def check_async_error(self) -> None:
        self.library.one_thread()
        if self.injected:
            raise NcclError(self.injected)
        if self.trouble is not None:
            raise NcclError(*self.trouble)

    def abort(self) -> None:
        self.library.one_thread()
        if self.aborted:
            raise NcclError(4, "aborted twice")
        self.aborted = True
        self.library.device.abort(self)

    def destroy(self) -> None:
        raise AssertionError("destroy hangs where a peer skips it")


class StandinNccl:
    """As the module cupy.cuda.nccl, of one device."""

    NcclError = NcclError
    NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_INT64 = 0, 1, 2, 4
    NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 = 6, 7, 8, 9

    def __init__(self, device: StandinDevice, version: int = 22703) -> None:
        self.device = device
        self._version = version
        self._thread: int | None = None
        self._depth = 0
        self._group: list[tuple[NcclCommunicator, _Part, int]] = []

    def one_thread(self) -> None:
        """NCCL is called by one thread of a process."""
        caller = threading.get_ident()
        self._thread = self._thread or caller
        if caller != self._thread:
            raise NcclError(5, "called from a second thread")

    def get_version(self) -> int:
        return self._version

    def get_build_version(self) -> int:
        return self._version

    def get_unique_id(self) -> bytes:
        self.one_thread()
        self.device.say("id")
        self._wait_for(lambda: bool(self.device.ids))
        return self.device.ids.popleft()

    def NcclCommunicator(self, members: int, uid: bytes, rank: int) -> NcclCommunicator:  # noqa: N802
        self.one_thread()
        if not isinstance(uid, bytes) or len(uid) != ID_BYTES:
            raise TypeError("an id is bytes, as in cupy 14")
        comm = NcclCommunicator(self, members, uid, rank)
        with self.device.changed:
            self.device.comms[uid] = comm
        self.device.say("join", uid, members, rank)
        self._wait_for(lambda: comm.joined or comm.trouble is not None)
        comm.check_async_error()
        return comm

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        with self.device.changed:
            if not self.device.changed.wait_for(condition, JOIN_S):
                raise NcclError(2, "nobody comes")

    def groupStart(self) -> None:  # noqa: N802
        self.one_thread()
        self._depth += 1

    def groupEnd(self) -> None:  # noqa: N802
        self.one_thread()
        if self._depth == 0:
            raise NcclError(5, "no group was started")
        self._depth -= 1
        if self._depth == 0:
            group, self._group = self._group, []
            self._launch(group)

    def add(self, comm: NcclCommunicator, part: _Part, stream: int) -> None:
        if self._depth:
            self._group.append((comm, part, stream))
        else:
            self._launch([(comm, part, stream)])

    def _launch(self, group: list[tuple[NcclCommunicator, _Part, int]]) -> None:
        if not group:
            return
        if len({(comm.uid, stream) for comm, _, stream in group}) > 1:
            raise NcclError(5, "a group over several communicators or streams")
        comm, _, stream = group[0]
        self.device.launch(comm, stream, [part for _, part, _ in group])


class StandinStreams:
    """The device's streams. Compute is on the host: what it has been given is done."""

    def __init__(self, device: StandinDevice) -> None:
        self._device = device

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def bind(self) -> None:
        """There is one device."""

    def open(self) -> StandinStream:
        return self._device.stream()

    def now(self) -> StandinEvent:
        return StandinEvent(passed=True)

    def hold(self, event: StandinEvent, check: Callable[[], None]) -> None:
        while not event.wait(0.005):
            check()
