"""`manifest.json`: what a directory of prepared data holds; its presence says it is complete."""

import hashlib
from typing import Literal

from disagmoe.config.base import Section
from disagmoe.errors import DataError
from disagmoe.storage import Location

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
LISTED_BAD_RECORDS = 1000

TokenizerKind = Literal["file", "bpe", "bytes"]
FileFormat = Literal["text", "jsonl", "parquet"]


class SourceEntry(Section):
    """An input file."""

    path: str
    """Absolute path or URI."""
    size_bytes: int
    """Size on disk."""
    mtime_ns: int
    """Time of the last change; tells a changed file of the same size."""
    format: FileFormat
    """How it was read."""


class BadRecord(Section):
    """An input record that was skipped."""

    file: str
    """Path of the input file."""
    record: str
    """Where in the file, for example `line 17`, `row 3` or `file`."""
    reason: str
    """What was wrong with it."""

    def __str__(self) -> str:
        where = self.file if self.record == "file" else f"{self.file}, {self.record}"
        if self.record.startswith("line "):
            where = f"{self.file}:{self.record.removeprefix('line ')}"
        return f"{where}: {self.reason}"


class ShardEntry(Section):
    """One Arrow file, and what reading its inputs gave."""

    name: str
    """File name in the directory."""
    documents: int
    """Rows."""
    tokens: int
    """Tokens over all rows, end-of-document tokens included."""
    size_bytes: int
    """Size of the file."""
    sha256: str
    """Hash of the file."""
    input_bytes: int
    """Bytes of input on disk."""
    text_bytes: int
    """Bytes of UTF-8 text that became tokens."""
    cut_documents: int
    """Documents that end where a text above `max_document_bytes` was cut."""
    bad_records: int
    """Records skipped."""


class TokenizerEntry(Section):
    """The tokenizer, saved as `tokenizer.json`."""

    kind: TokenizerKind
    """Where it came from."""
    sha256: str
    """Hash of `tokenizer.json`."""
    vocab_size: int
    """Largest token id plus one."""
    eod_token: str
    """End-of-document token."""
    eod_id: int
    """Its id; the last token of every document."""


class Identity(Section):
    """All that decides the output. Two preparations with equal identities give equal files."""

    format_version: int = FORMAT_VERSION
    """Version of this directory format."""
    tokenizer: str
    """Kind of tokenizer with its parameters, and the hash of a given file."""
    text_field: str
    """Field or column that holds the text."""
    max_document_bytes: int
    """Longest text kept as one document."""
    shard_bytes: int
    """Input bytes per shard."""
    sources: list[SourceEntry]
    """Input files in the order of their documents."""


class Manifest(Section):
    """The content of `manifest.json`."""

    identity: Identity
    """What it was prepared from."""
    tokenizer: TokenizerEntry
    """The tokenizer."""
    token_type: Literal["uint16", "uint32"]
    """Type of stored tokens."""
    documents: int
    """Documents over all shards."""
    tokens: int
    """Tokens over all shards, end-of-document tokens included."""
    text_bytes: int
    """Bytes of UTF-8 text."""
    cut_documents: int
    """Documents that end where a text above `max_document_bytes` was cut."""
    bad_records: int
    """Input records skipped."""
    bad_record_list: list[BadRecord]
    """The first of them."""
    shards: list[ShardEntry]
    """Arrow files in order."""

    @property
    def fingerprint(self) -> str:
        """Hash of the stored tokens and the tokenizer; equal data has equal fingerprints."""
        parts = [self.tokenizer.sha256, *(shard.sha256 for shard in self.shards)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read_manifest(directory: Location) -> Manifest:
    """Read and check `manifest.json`; raises DataError when it is missing, broken or too new."""
    place = directory / MANIFEST
    if not place.is_file():
        raise DataError(
            f"{directory}: holds no prepared data ({MANIFEST} is missing); "
            f"make it with `disagmoe data prepare --input ... --out {directory}`"
        )
    try:
        manifest = Manifest.model_validate_json(place.read_bytes())
    except ValueError as error:
        raise DataError(f"{place}: not a manifest that this version reads: {error}") from error
    version = manifest.identity.format_version
    if version != FORMAT_VERSION:
        raise DataError(
            f"{place}: format version {version}, this program reads {FORMAT_VERSION}; "
            "prepare the data again"
        )
    return manifest
