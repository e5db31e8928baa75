"""What every reader gives: documents, and records that cannot become one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from disagmoe.data.manifest import BadRecord, FileFormat
from disagmoe.errors import DataError
from disagmoe.storage import Location
from disagmoe.units import MIB

BLOCK_BYTES = 1 * MIB
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one input file: bytes `[start, stop)`, or row groups `[start, stop)` of Parquet.

    A record belongs to the piece in which it starts. A compressed file is always one piece.
    """

    path: str
    format: FileFormat
    start: int
    stop: int
    input_bytes: int


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How records become documents."""

    text_field: str = "text"
    max_document_bytes: int = 4 * MIB


@dataclass(frozen=True, slots=True)
class Document:
    """The text of one document; `cut` says that the text goes on in the next document."""

    text: str
    cut: bool = False


Record = Document | BadRecord


def unreadable(path: str, error: Exception, record: str = "file") -> BadRecord:
    """The bad record of a file, or of a part of it, that cannot be read."""
    return BadRecord(file=path, record=record, reason=f"cannot be read ({error})")


def empty_file(path: str) -> BadRecord:
    """The bad record of a file without a single byte."""
    return BadRecord(file=path, record="file", reason="is empty")


def refuse(record: BadRecord) -> DataError:
    """The error that a bad record is unless the user asked to skip such records."""
    advice = "mend it, leave the file out with --exclude, or use --on-bad-record skip"
    return DataError(f"{record}; {advice}")


def text_problem(value: Any, field: str) -> str | None:
    """Why the value of a text field is no document; None when it is one."""
    if value is None:
        return f"{field!r} is null, expected a string"
    if not isinstance(value, str):
        return f"{field!r} is {type(value).__name__}, expected a string"
    if not value:
        return f"{field!r} is empty"
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"{field!r} holds a lone surrogate, which is no valid Unicode text"
    return None


def compression_of(path: str) -> str | None:
    """Name of the compression that the file name tells, as pyarrow spells it."""
    return next((name for end, name in COMPRESSIONS.items() if path.endswith(end)), None)


def read_blocks(location: Location, start: int) -> Iterator[bytes]:
    """Blocks of a file from byte `start` on, decompressed; a compressed file starts at 0.

    Raises OSError for a compressed file that ends too early.
    """
    if start:
        with location.fs.open_input_file(location.path) as file:
            file.seek(start)
            while block := file.read(BLOCK_BYTES):
                yield block
        return
    compression = compression_of(location.path)
    with location.fs.open_input_stream(location.path, compression=compression) as stream:
        while block := stream.read(BLOCK_BYTES):
            yield block
