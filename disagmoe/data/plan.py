"""Which shard reads what: decided by the inputs and options alone, never by the processes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from disagmoe.data.manifest import BadRecord, FileFormat, Identity, SourceEntry
from disagmoe.data.parquet import open_parquet
from disagmoe.data.records import Piece, ReadOptions, compression_of, empty_file, refuse
from disagmoe.data.storage import SourceFile, find_files
from disagmoe.data.textfile import MIN_DOCUMENT_BYTES
from disagmoe.data.tokenizer import TokenizerSpec
from disagmoe.errors import DataError
from disagmoe.storage import Location
from disagmoe.units import MIB

# Enough shards for all cores of a large machine, none so small that files outnumber their use.
SHARDS_WANTED = 64
MIN_SHARD_BYTES = 1 * MIB
MAX_SHARD_BYTES = 256 * MIB

_FORMATS: dict[str, FileFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """What the user asked for."""

    inputs: list[str]
    out: str
    excludes: list[str]
    tokenizer: TokenizerSpec
    format: Literal["auto", "text", "jsonl", "parquet"] = "auto"
    read: ReadOptions = field(default_factory=ReadOptions)
    skip_bad_records: bool = False
    processes: int = 1
    shard_bytes: int = 0
    """Input bytes per shard; 0 takes 1/64 of the input, between 1 and 256 MiB."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The shards of a preparation, each a list of pieces, and input files that cannot be used."""

    identity: Identity
    shards: list[list[Piece]]
    bad: list[BadRecord]

    @property
    def input_bytes(self) -> int:
        """Input bytes over all shards."""
        return sum(piece.input_bytes for shard in self.shards for piece in shard)


def make_plan(options: PrepareOptions) -> Plan:
    """Find the input files, check what can be checked without reading them, and cut them up.

    Raises DataError when no file matches, or for a file that cannot be used unless bad records are
    skipped, in which case it is listed in the plan.
    """
    if options.read.max_document_bytes < MIN_DOCUMENT_BYTES:
        raise DataError(f"--max-document-bytes must be at least {MIN_DOCUMENT_BYTES}")
    files = find_files(options.inputs, options.excludes)
    shard_bytes = options.shard_bytes or _default_shard_bytes(files)
    pieces: list[Piece] = []
    bad: list[BadRecord] = []
    sources = []
    for file in files:
        source = SourceEntry(
            path=str(file.location),
            size_bytes=file.size_bytes,
            mtime_ns=file.mtime_ns,
            format=_format_of(str(file.location), options.format),
        )
        sources.append(source)
        try:
            pieces.extend(_pieces(file.location, source, options.read, shard_bytes))
        except DataError as error:
            reason = str(error).removeprefix(f"{source.path}: ")
            record = BadRecord(file=source.path, record="file", reason=reason)
            if not options.skip_bad_records:
                raise refuse(record) from error
            bad.append(record)
    identity = Identity(
        tokenizer=options.tokenizer.identity(),
        text_field=options.read.text_field,
        max_document_bytes=options.read.max_document_bytes,
        shard_bytes=shard_bytes,
        sources=sources,
    )
    return Plan(identity, list(_group(pieces, shard_bytes)), bad)


def _default_shard_bytes(files: list[SourceFile]) -> int:
    total = sum(file.size_bytes for file in files)
    return min(max(total // SHARDS_WANTED, MIN_SHARD_BYTES), MAX_SHARD_BYTES)


def _format_of(path: str, wanted: Literal["auto", "text", "jsonl", "parquet"]) -> FileFormat:
    if wanted != "auto":
        return wanted
    compression = compression_of(path)
    stem = path.rpartition(".")[0] if compression else path
    return next((kind for end, kind in _FORMATS.items() if stem.endswith(end)), "text")


def _pieces(
    location: Location, source: SourceEntry, read: ReadOptions, shard_bytes: int
) -> Iterator[Piece]:
    size = source.size_bytes
    if size == 0:
        raise DataError(str(empty_file(source.path)))
    if source.format == "parquet":
        yield from _row_groups(location, source.path, read.text_field)
    elif compression_of(source.path):
        yield Piece(source.path, source.format, 0, size, size)
    else:
        unit = read.max_document_bytes if source.format == "text" else 1
        step = max(shard_bytes // unit, 1) * unit
        for start in range(0, size, step):
            stop = min(start + step, size)
            yield Piece(source.path, source.format, start, stop, stop - start)


def _row_groups(location: Location, path: str, field: str) -> Iterator[Piece]:
    with open_parquet(location, field) as file:
        metadata = file.metadata
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            columns = map(row_group.column, range(row_group.num_columns))
            size = sum(c.total_uncompressed_size for c in columns if c.path_in_schema == field)
            yield Piece(path, "parquet", group, group + 1, size)


def _group(pieces: Iterable[Piece], shard_bytes: int) -> Iterator[list[Piece]]:
    """Consecutive pieces until a shard has `shard_bytes`; neighbours in one file become one."""
    shard: list[Piece] = []
    filled = 0
    for piece in pieces:
        if shard and shard[-1].path == piece.path and shard[-1].stop == piece.start:
            joined = shard[-1].input_bytes + piece.input_bytes
            shard[-1] = replace(shard[-1], stop=piece.stop, input_bytes=joined)
        else:
            shard.append(piece)
        filled += piece.input_bytes
        if filled >= shard_bytes:
            yield shard
            shard, filled = [], 0
    if shard:
        yield shard
