"""Parquet: one document per row, read in batches of rows, one row group after the other."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from disagmoe.data.manifest import BadRecord
from disagmoe.data.records import (
    BLOCK_BYTES,
    Piece,
    ReadOptions,
    Record,
    text_problem,
    unreadable,
)
from disagmoe.data.textfile import cut_text
from disagmoe.errors import DataError
from disagmoe.storage import Location

BATCH_ROWS = 256


def open_parquet(location: Location, text_field: str) -> Any:
    """Open and check one file, a pyarrow ParquetFile that the caller closes.

    Raises DataError when the footer cannot be read or the column is missing or holds no strings.
    """
    try:
        source = location.fs.open_input_file(location.path)
        file = pq.ParquetFile(source, buffer_size=BLOCK_BYTES, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{location}: not a complete Parquet file ({error})") from error
    schema = file.schema_arrow
    if text_field not in schema.names:
        columns = ", ".join(schema.names) or "none"
        raise DataError(
            f"{location}: has no column {text_field!r}; its columns are: {columns} (--text-field)"
        )
    kind = schema.field(text_field).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(f"{location}: column {text_field!r} is {kind}, expected string")
    return file


def read_parquet(location: Location, piece: Piece, options: ReadOptions) -> Iterator[Record]:
    """Documents of the rows in the piece's row groups.

    A row without text is a bad record; so is the rest of a row group that cannot be read.
    """
    field = options.text_field
    with open_parquet(location, field) as file:
        groups = [file.metadata.row_group(i).num_rows for i in range(piece.stop)]
        for group in range(piece.start, piece.stop):
            row = sum(groups[:group])
            try:
                for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=[field]):
                    for value in _raw_values(batch.column(0)):
                        yield from _documents(piece.path, row, value, options)
                        row += 1
            except (OSError, pa.ArrowException) as error:
                yield unreadable(piece.path, error, f"row group {group}")


def _raw_values(column: Any) -> Iterator[bytes | None]:
    """Undecoded strings: pyarrow stops at the first one that is not UTF-8 without naming it."""
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    for value in column.cast(pa.large_binary()):
        yield value.as_py()


def _documents(path: str, row: int, value: bytes | None, options: ReadOptions) -> Iterator[Record]:
    try:
        text = None if value is None else value.decode()
    except UnicodeDecodeError as error:
        reason = f"not valid UTF-8 ({error.reason} at byte {error.start} of the text)"
        yield BadRecord(file=path, record=f"row {row}", reason=reason)
        return
    problem = text_problem(text, options.text_field)
    if text is None or problem:
        yield BadRecord(file=path, record=f"row {row}", reason=problem or "is null")
    else:
        yield from cut_text(text, options)
