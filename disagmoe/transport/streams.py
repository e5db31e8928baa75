"""Streams and events of one device, as a transport that runs beside compute needs them.

The compute stream is the calling thread's current stream: what it has been given so far is what a
transfer must wait for, and what it is given after `hold` waits for the transfer.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from disagmoe.errors import TransportError


class Event(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool:
        """Whether the device has passed it."""

    def since(self, earlier: "Event") -> float:
        """Seconds of the device's time since `earlier`; both must have been passed."""


class Stream(Protocol):
    """A queue of work on the device."""

    @property
    def handle(self) -> int:
        """What a library that launches on the stream is given."""

    def wait(self, event: Event) -> None:
        """Let what is queued from now on begin after `event`."""

    def record(self) -> Event:
        """Return the point after all that has been queued."""


class Streams(Protocol):
    """One device."""

    @property
    def device(self) -> torch.device:
        """Where tensors are."""

    def bind(self) -> None:
        """Make the device the calling thread's own."""

    def open(self) -> Stream:
        """Return a new stream, which waits for no other by itself."""

    def now(self) -> Event:
        """Return the point after all that the calling thread's compute stream has been given."""

    def hold(self, event: Event, check: Callable[[], None]) -> None:
        """Let what the compute stream is given from now on begin after `event`. Where that takes
        the host, call `check` again and again, which raises when the event cannot come any more."""


class _CudaEvent:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record(stream)

    def query(self) -> bool:
        return bool(self.event.query())

    def since(self, earlier: Event) -> float:
        assert isinstance(earlier, _CudaEvent)
        return float(earlier.event.elapsed_time(self.event)) / 1000


class _CudaStream:
    def __init__(self, device: torch.device) -> None:
        # above compute: a transfer takes few multiprocessors, and others wait for it
        self._stream = torch.cuda.Stream(device, priority=-1)

    @property
    def handle(self) -> int:
        return self._stream.cuda_stream

    def wait(self, event: Event) -> None:
        assert isinstance(event, _CudaEvent)
        self._stream.wait_event(event.event)

    def record(self) -> Event:
        return _CudaEvent(self._stream)


class CudaStreams:
    """A CUDA device through torch. Streams are torch's own, so they wait for no default stream."""

    def __init__(self, device: torch.device) -> None:
        """Raises TransportError where torch has no such device."""
        if not torch.cuda.is_available():
            raise TransportError(no_device(device))
        # a device made without a number is the current one
        self._device = torch.empty(0, device=device).device

    @property
    def device(self) -> torch.device:
        """See Streams.device."""
        return self._device

    def bind(self) -> None:
        """See Streams.bind."""
        torch.cuda.set_device(self._device)

    def open(self) -> Stream:
        """See Streams.open."""
        return _CudaStream(self._device)

    def now(self) -> Event:
        """See Streams.now."""
        return _CudaEvent(torch.cuda.current_stream(self._device))

    def hold(self, event: Event, check: Callable[[], None]) -> None:
        """See Streams.hold; the device waits, the host does not."""
        check()
        assert isinstance(event, _CudaEvent)
        torch.cuda.current_stream(self._device).wait_event(event.event)


def no_device(device: torch.device) -> str:
    """Why NCCL cannot serve `device` here."""
    return (
        f"NCCL moves tensors between CUDA devices, and torch {torch.__version__} sees none here "
        f"(asked for {device}); use transport gloo, or a machine with a GPU and a CUDA build of "
        "torch"
    )


class BufferRing:
    """Buffers to receive into, each used again and again for messages of about its size.

    A buffer from torch's allocator may be read by a kernel that is still queued, so a receive into
    it would have to wait for all of compute. A buffer of the ring remembers the point after its
    last reader, and waits for that alone.
    """

    def __init__(self, allocate: Callable[[int], torch.Tensor], now: Callable[[], Event]) -> None:
        """`allocate` returns a new uint8 tensor of that many bytes."""
        self._allocate = allocate
        self._now = now
        self._free: list[tuple[torch.Tensor, Event]] = []  # oldest first
        self._used: dict[int, tuple[torch.Tensor, Event]] = {}

    @property
    def nbytes(self) -> int:
        """Memory of all buffers."""
        blocks = [block for block, _ in (*self._free, *self._used.values())]
        return sum(len(block) for block in blocks)

    def take(self, nbytes: int) -> torch.Tensor:
        """Return `nbytes` of a free buffer, the longest free among those that fit; where none does,
        of a new one that replaces the longest free of all, so that there never are more buffers
        than were in use at once."""
        size = _rounded(nbytes)
        fits = [at for at, (block, _) in enumerate(self._free) if size <= len(block) <= 2 * size]
        if fits:
            block, after = self._free.pop(fits[0])
        else:
            if self._free:
                self._free.pop(0)
            block, after = self._allocate(size), self._now()
        self._used[block.data_ptr()] = block, after
        return block[:nbytes]

    def after(self, buffer: torch.Tensor) -> Event | None:
        """The point after which `buffer` may be written; None for one that is not of the ring."""
        held = self._used.get(buffer.data_ptr())
        return None if held is None else held[1]

    def give_back(self, buffer: torch.Tensor) -> None:
        """Free a buffer of `take`, whose readers have been queued by now."""
        block, _ = self._used.pop(buffer.data_ptr())
        self._free.append((block, self._now()))


def _rounded(nbytes: int) -> int:
    """The next of four sizes per power of two, so that messages of about one size share buffers."""
    if nbytes <= 512:
        return 512
    step = 1 << (nbytes - 1).bit_length() - 3
    return -(-nbytes // step) * step
