"""Text files: one document each, cut into several where a text is longer than allowed.

Cut k lies at the first line end that follows byte k * limit within a window, else at the first
character that starts there. It depends on the text alone, so that any reader that seeks to
k * limit finds the same cut, and parts of one file can be read by different processes.
"""

from collections.abc import Iterator

from disagmoe.data.manifest import BadRecord
from disagmoe.data.records import (
    Document,
    Piece,
    ReadOptions,
    Record,
    compression_of,
    empty_file,
    read_blocks,
    unreadable,
)
from disagmoe.storage import Location
from disagmoe.units import KIB

MIN_DOCUMENT_BYTES = 16


def window_bytes(limit: int) -> int:
    """How far behind a multiple of `limit` a cut looks for a line end."""
    return min(64 * KIB, limit // 2)


def cut_offset(window: bytes | bytearray) -> int:
    """Offset of the cut in `window`, the bytes that follow a multiple of the limit."""
    newline = window.find(b"\n")
    if newline >= 0:
        return newline + 1
    # Bytes 10xxxxxx continue a UTF-8 character, which has at most 4 bytes.
    head = window[:4]
    return next((i for i, byte in enumerate(head) if byte & 0xC0 != 0x80), len(head))


def cut_stream(
    blocks: Iterator[bytes], start: int, stop: int | None, limit: int
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of each part of a stream.

    `blocks` holds the bytes from offset `start` on, which is 0 or a cut. Reading ends with the part
    that reaches `stop`, a multiple of `limit` or the size of all; None reads all.
    """
    window = window_bytes(limit)
    pending = bytearray()
    boundary = (start // limit + 1) * limit
    ended = False
    while not ended:
        block = next(blocks, b"")
        ended = not block
        pending += block
        while pending and (ended or len(pending) >= boundary + window - start):
            size = boundary - start
            size = min(size + cut_offset(pending[size : size + window]), len(pending))
            yield start, bytes(pending[:size])
            if stop is not None and boundary >= stop:
                return
            del pending[:size]
            start += size
            boundary += limit


def cut_text(text: str, options: ReadOptions) -> Iterator[Document]:
    """A whole text as one document, or as several when it is longer than allowed."""
    limit = options.max_document_bytes
    data = text.encode()
    parts = [part for _, part in cut_stream(iter([data]), 0, None, limit)]
    for i, part in enumerate(parts, start=1):
        yield Document(part.decode(), cut=i < len(parts))


def read_text(location: Location, piece: Piece, options: ReadOptions) -> Iterator[Record]:
    """Documents of a text file. A part that is not UTF-8 is a bad record; so is an empty file."""
    stop = None if compression_of(piece.path) else piece.stop
    try:
        if location.info().size == 0:
            yield empty_file(piece.path)
            return
        held: tuple[int, bytes] | None = None
        for part in _parts(location, piece.start, stop, options.max_document_bytes):
            if held is not None:
                yield _document(piece.path, *held, cut=True)
            held = part
        if held is not None:
            end = held[0] + len(held[1])
            yield _document(piece.path, *held, cut=stop is not None and end < location.info().size)
        elif piece.start == 0:
            yield empty_file(piece.path)
    except OSError as error:
        yield unreadable(piece.path, error)


def _parts(
    location: Location, start: int, stop: int | None, limit: int
) -> Iterator[tuple[int, bytes]]:
    if start:
        head = bytearray()
        for block in read_blocks(location, start):
            head += block
            if len(head) >= window_bytes(limit):
                break
        start += cut_offset(head[: window_bytes(limit)])
    return cut_stream(read_blocks(location, start), start, stop, limit)


def _document(path: str, offset: int, data: bytes, *, cut: bool) -> Record:
    try:
        return Document(data.decode(), cut)
    except UnicodeDecodeError as error:
        reason = f"not valid UTF-8 ({error.reason})"
        return BadRecord(file=path, record=f"byte {offset + error.start}", reason=reason)
