"""Writing one shard: read its pieces, tokenise, stream Arrow record batches to a file.

A shard is an Arrow IPC file with one row per document and one column, `tokens`. Memory is bounded
by one batch of text and one record batch, whatever the size of the inputs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from disagmoe.data.jsonl import read_jsonl
from disagmoe.data.manifest import LISTED_BAD_RECORDS, BadRecord, ShardEntry
from disagmoe.data.parquet import read_parquet
from disagmoe.data.records import Document, Piece, ReadOptions, Record, refuse
from disagmoe.data.storage import HashingSink
from disagmoe.data.textfile import read_text
from disagmoe.data.tokenizer import DocumentTokenizer, Tokens
from disagmoe.errors import DataError
from disagmoe.storage import Location
from disagmoe.units import MIB

ENCODE_BYTES = 1 * MIB
ROWS_BYTES = 4 * MIB


def shard_name(index: int) -> str:
    """File name of shard `index`."""
    return f"shard-{index:05d}.arrow"


def shard_schema(dtype: Any) -> Any:
    """Arrow schema of a shard whose tokens have the numpy type `dtype`."""
    return pa.schema([pa.field("tokens", pa.large_list(pa.from_numpy_dtype(dtype)), False)])


@dataclass(frozen=True, slots=True)
class ShardJob:
    """One shard to write."""

    index: int
    pieces: list[Piece]
    directory: str
    read: ReadOptions
    skip_bad_records: bool


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What a finished shard holds, and the first bad records that were skipped."""

    entry: ShardEntry
    bad: list[BadRecord]


def read_records(piece: Piece, options: ReadOptions) -> Iterator[Record]:
    """Documents and bad records of `piece` in the order of the file."""
    location = Location.parse(piece.path)
    match piece.format:
        case "text":
            return read_text(location, piece, options)
        case "jsonl":
            return read_jsonl(location, piece, options)
        case "parquet":
            return read_parquet(location, piece, options)


def write_shard(job: ShardJob, tokenizer: DocumentTokenizer) -> ShardResult:
    """Write the shard; its file is there whole or not at all.

    Raises DataError for the first bad record unless these are skipped.
    """
    target = Location.parse(job.directory) / shard_name(job.index)
    tally = _Tally(job.skip_bad_records)
    try:
        with target.writing() as stream:
            sink = HashingSink(stream)
            schema = shard_schema(tokenizer.dtype)
            with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
                documents = tally.documents(job.pieces, job.read)
                for rows in _row_batches(documents, tokenizer):
                    writer.write_batch(_record_batch(rows, schema))
                    tally.rows += len(rows)
                    tally.tokens += sum(len(row) for row in rows)
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error})") from error
    entry = ShardEntry(
        name=shard_name(job.index),
        documents=tally.rows,
        tokens=tally.tokens,
        size_bytes=sink.size_bytes,
        sha256=sink.sha256(),
        input_bytes=sum(piece.input_bytes for piece in job.pieces),
        text_bytes=tally.text_bytes,
        cut_documents=tally.cut_documents,
        bad_records=tally.bad_records,
    )
    return ShardResult(entry, tally.bad)


@dataclass(slots=True)
class _Tally:
    """Counts what passes by."""

    skip_bad_records: bool
    rows: int = 0
    tokens: int = 0
    text_bytes: int = 0
    cut_documents: int = 0
    bad_records: int = 0
    bad: list[BadRecord] = field(default_factory=list)

    def documents(self, pieces: list[Piece], options: ReadOptions) -> Iterator[str]:
        """Texts of all pieces; a bad record is refused or counted."""
        for piece in pieces:
            for record in read_records(piece, options):
                if isinstance(record, Document):
                    self.text_bytes += len(record.text.encode())
                    self.cut_documents += record.cut
                    yield record.text
                    continue
                if not self.skip_bad_records:
                    raise refuse(record)
                self.bad_records += 1
                if len(self.bad) < LISTED_BAD_RECORDS:
                    self.bad.append(record)


def _row_batches(texts: Iterable[str], tokenizer: DocumentTokenizer) -> Iterator[list[Tokens]]:
    """Token rows in groups of about `ROWS_BYTES`, encoded in groups of about `ENCODE_BYTES`."""
    pending: list[str] = []
    rows: list[Tokens] = []
    pending_size = rows_size = 0
    for text in texts:
        pending.append(text)
        pending_size += len(text)
        if pending_size < ENCODE_BYTES:
            continue
        encoded = tokenizer.encode(pending)
        rows += encoded
        rows_size += sum(row.nbytes for row in encoded)
        pending, pending_size = [], 0
        if rows_size >= ROWS_BYTES:
            yield rows
            rows, rows_size = [], 0
    rows += tokenizer.encode(pending)
    if rows:
        yield rows


def _record_batch(rows: list[Tokens], schema: Any) -> Any:
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values = pa.array(np.concatenate(rows))
    return pa.record_batch(
        [pa.LargeListArray.from_arrays(pa.array(offsets), values)], schema=schema
    )
