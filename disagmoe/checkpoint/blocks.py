"""Files with a hash for each block, so that any part can be read and checked without the rest."""

import hashlib
from typing import Any

from disagmoe.checkpoint.manifest import FileEntry
from disagmoe.errors import CheckpointError
from disagmoe.storage import Location, reason_of
from disagmoe.units import MIB

BLOCK_BYTES = 32 * MIB
"""Large for an object store's latency (tens of ms at some 1 GB/s), small beside a worker's memory;
a file of 100 GB has 3,000 hashes."""


class HashedWriter:
    """Passes bytes on to a pyarrow stream and hashes each block of them on the way."""

    def __init__(self, stream: Any, block_bytes: int) -> None:
        self._stream = stream
        self._block_bytes = block_bytes
        self._hash = hashlib.sha256()
        self._finished: list[str] = []
        self.size_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        """Write and hash. Raises OSError where it cannot be written."""
        left = memoryview(data).cast("B")
        while len(left):
            room = self._block_bytes - self.size_bytes % self._block_bytes
            part, left = left[:room], left[room:]
            self._stream.write(part)
            self._hash.update(part)
            self.size_bytes += len(part)
            if self.size_bytes % self._block_bytes == 0:
                self._finish()

    def sha256(self) -> list[str]:
        """Hash of each block; nothing may be written after it."""
        if self.size_bytes % self._block_bytes:
            self._finish()
        return self._finished

    def _finish(self) -> None:
        self._finished.append(self._hash.hexdigest())
        self._hash = hashlib.sha256()


class HashedReader:
    """Reads parts of one file of a checkpoint, checking each block that it touches.

    Holds one block at a time; parts in ascending order read each block once.
    """

    def __init__(self, directory: Location, entry: FileEntry, block_bytes: int) -> None:
        """Open the file. Raises CheckpointError where it is missing or has another size."""
        self._file = directory / entry.name
        self._entry = entry
        self._block_bytes = block_bytes
        self._index = -1
        self._block = memoryview(b"")
        self._blocks = -(-entry.size_bytes // block_bytes)
        try:
            info = self._file.info()
            if problem := size_problem(self._file, entry, info.size):
                raise CheckpointError(f"{problem}; {REMEDY}")
            if len(entry.sha256) != self._blocks:
                raise CheckpointError(
                    f"{self._file}: the manifest has {len(entry.sha256)} hashes for "
                    f"{self._blocks} blocks; {REMEDY}"
                )
            self._stream = self._file.fs.open_input_file(self._file.path)
        except OSError as error:
            raise self._unreadable(error) from error

    def read(self, start: int, target: memoryview) -> None:
        """Fill `target`, which is writable bytes, with what stands at `start` of the file.

        Raises CheckpointError for bytes that have changed since they were written, or cannot be
        read.
        """
        end = start + len(target)
        if not 0 <= start <= end <= self._entry.size_bytes:
            raise CheckpointError(
                f"{self._file}: bytes {start} to {end} are asked for, of {self._entry.size_bytes}; "
                f"{REMEDY}"
            )
        at = start
        while at < end:
            self._load(at // self._block_bytes)
            first = at % self._block_bytes
            part = self._block[first : first + end - at]
            target[at - start : at - start + len(part)] = part
            at += len(part)

    def check(self) -> None:
        """Check the whole file; raises CheckpointError as `read` does."""
        for index in range(self._blocks):
            self._load(index)

    def close(self) -> None:
        """Give the file back."""
        self._stream.close()

    def __enter__(self) -> "HashedReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self, index: int) -> None:
        if index == self._index:
            return
        start = index * self._block_bytes
        count = min(self._block_bytes, self._entry.size_bytes - start)
        self._index, self._block = -1, memoryview(b"")  # one block in memory, not two
        try:
            block = memoryview(self._stream.read_at(count, start))
        except OSError as error:
            raise self._unreadable(error) from error
        if hashlib.sha256(block).hexdigest() != self._entry.sha256[index]:
            raise CheckpointError(
                f"{self._file}: its bytes from {start} to {start + count} are not those that were "
                f"written; {REMEDY}"
            )
        self._index, self._block = index, block

    def _unreadable(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self._file}: cannot be read ({reason_of(error)})")


REMEDY = "restore the file from a copy, or resume from another checkpoint (--resume D@STEP)"


def size_problem(file: Location, entry: FileEntry, size_bytes: int | None) -> str:
    """Say what is wrong with the size of `file`, which is None where it is missing; or nothing."""
    if size_bytes is None:
        return f"{file}: is missing"
    if size_bytes != entry.size_bytes:
        return f"{file}: has {size_bytes} bytes, the manifest says {entry.size_bytes}"
    return ""
