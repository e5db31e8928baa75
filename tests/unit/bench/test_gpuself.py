"""One rank that sends to itself."""

import ctypes
from itertools import count
from typing import Any

import pytest
import torch

from disagmoe.bench.gpuself import SIZES, send_to_oneself
from disagmoe.errors import TransportError
from disagmoe.transport.nccl_library import Nccl


class Library:
    """A module of NCCL for one rank, whose groups are done when they are launched."""

    class NcclError(RuntimeError):
        status = 5

    NCCL_UINT8 = 1

    def __init__(self, *, loses: bool = False) -> None:
        self._loses = loses
        self._depth = 0
        self._sent: tuple[int, int] | None = None
        self.launched = 0
        self.aborted = False

    def get_unique_id(self) -> bytes:
        return bytes(128)

    def NcclCommunicator(self, members: int, uid: bytes, rank: int) -> "Library":  # noqa: N802
        assert (members, rank) == (1, 0)
        return self

    def groupStart(self) -> None:  # noqa: N802
        self._depth += 1

    def groupEnd(self) -> None:  # noqa: N802
        self._depth -= 1
        self.launched += 1

    def send(self, pointer: int, size: int, dtype: int, peer: int, stream: int) -> None:
        assert self._depth == 1, "outside of a group it would wait for ever"
        self._sent = pointer, size

    def recv(self, pointer: int, size: int, dtype: int, peer: int, stream: int) -> None:
        assert self._sent is not None
        source, sent = self._sent
        assert sent == size
        if not self._loses:
            ctypes.memmove(pointer, source, size)

    def check_async_error(self) -> None:
        """There is none."""

    def abort(self) -> None:
        self.aborted = True


class Device:
    """Streams whose clock goes on by a second with each event."""

    device = torch.device("cpu")
    handle = 7

    def __init__(self) -> None:
        self._ticks = count()

    def open(self) -> "Device":
        return self

    def wait(self, event: Any) -> None:
        """All is done."""

    def record(self) -> "Tick":
        return Tick(next(self._ticks))

    now = record

    def hold(self, event: Any, check: Any) -> None:
        check()


class Tick:
    def __init__(self, at_s: int) -> None:
        self._at_s = at_s

    def since(self, earlier: "Tick") -> float:
        return float(self._at_s - earlier._at_s)


def test_rates_by_size() -> None:
    library, device = Library(), Device()
    found = send_to_oneself(Nccl(library), device)  # type: ignore[arg-type]
    assert found == {"bytes_per_s": {str(nbytes): 20.0 * nbytes for nbytes in SIZES}}
    assert library.launched == 21 * len(SIZES)
    assert library.aborted


def test_other_bytes_are_told() -> None:
    with pytest.raises(TransportError, match="65536 bytes to oneself came as others"):
        send_to_oneself(Nccl(Library(loses=True)), Device())  # type: ignore[arg-type]
