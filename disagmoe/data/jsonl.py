"""JSON lines: one document per line, in a field of a JSON object. Blank lines are passed over."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from disagmoe.data.manifest import BadRecord
from disagmoe.data.records import (
    Piece,
    ReadOptions,
    Record,
    compression_of,
    empty_file,
    read_blocks,
    text_problem,
    unreadable,
)
from disagmoe.data.textfile import cut_text
from disagmoe.storage import Location
from disagmoe.units import MIB, format_bytes

MAX_LINE_BYTES = 256 * MIB


def read_jsonl(location: Location, piece: Piece, options: ReadOptions) -> Iterator[Record]:
    """Documents of the lines that start in the piece; a broken line is a bad record."""
    stop = None if compression_of(piece.path) else piece.stop
    first_line = 1 if piece.start == 0 else 0
    lines = 0
    try:
        for line in split_lines(location, piece.start, stop):
            lines += 1
            if not line.strip():
                continue
            parsed = _parse(line, options.text_field)
            if parsed.problem is None:
                yield from cut_text(parsed.text, options)
                continue
            # Counting lines from the start of the file is slow, so only an error does it, once.
            first_line = first_line or 1 + _lines_before(location, piece.start)
            where = f"line {first_line + lines - 1}"
            yield BadRecord(file=piece.path, record=where, reason=parsed.problem)
    except OSError as error:
        yield unreadable(piece.path, error)
        return
    if lines == 0 and piece.start == 0:
        yield empty_file(piece.path)


def split_lines(location: Location, start: int, stop: int | None) -> Iterator[bytes]:
    """Lines that start in bytes `[start, stop)`, without their newlines.

    A range inside the file reads from one byte before `start` and drops the line it lands in, so
    that a line that starts right at `start` is kept. Raises OSError for a line above 256 MiB.
    """
    position = max(start - 1, 0)
    skip = start > 0
    pending = bytearray()
    for block in read_blocks(location, position):
        pending += block
        if b"\n" not in block:
            if len(pending) > MAX_LINE_BYTES:
                limit = format_bytes(MAX_LINE_BYTES)
                raise OSError(f"a line is longer than {limit}; are these JSON lines?")
            continue
        *complete, rest = bytes(pending).split(b"\n")
        for line in complete:
            if stop is not None and position >= stop:
                return
            position += len(line) + 1
            if not skip:
                yield line
            skip = False
        pending = bytearray(rest)
    if pending and not skip and (stop is None or position < stop):
        yield bytes(pending)


def _lines_before(location: Location, stop: int) -> int:
    """Number of lines that start in the first `stop` bytes."""
    count = position = 0
    ends_line = True
    for block in read_blocks(location, 0):
        inside = block[: stop - position]
        count += inside.count(b"\n")
        position += len(inside)
        ends_line = inside.endswith(b"\n")
        if position >= stop:
            break
    return count if ends_line else count + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parsed:
    """A text, or the problem that stands in its way."""

    text: str = ""
    problem: str | None = None


def _parse(line: bytes, field: str) -> _Parsed:
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start} of the line"
        return _Parsed(problem=f"not valid UTF-8 ({where})")
    except (ValueError, RecursionError) as error:
        return _Parsed(problem=f"not valid JSON ({error})")
    if not isinstance(value, dict):
        return _Parsed(problem=f"expected a JSON object, got {type(value).__name__}")
    if field not in value:
        keys = ", ".join(value) or "none"
        return _Parsed(problem=f"has no field {field!r}; its fields are: {keys} (--text-field)")
    problem = text_problem(value[field], field)
    return _Parsed(problem=problem) if problem else _Parsed(text=value[field])
