"""Reading prepared data: memory-mapped shards, documents as views of the mapped pages."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from disagmoe.data.manifest import TOKENIZER, Manifest, ShardEntry, read_manifest
from disagmoe.data.shard import shard_schema
from disagmoe.data.tokenizer import DocumentTokenizer
from disagmoe.errors import ConfigError, DataError
from disagmoe.storage import Location

Int64s = npt.NDArray[np.int64]
TokenView = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class PreparedData:
    """A directory that `disagmoe data prepare` wrote."""

    path: str
    manifest: Manifest
    starts: Int64s
    """Position of the first token of each document in the stored order, and the end: [D + 1]."""
    _chunks: list[TokenView]
    """Tokens of each record batch, views of the mapped files."""
    _chunk_documents: Int64s
    """Index of the first document of each record batch."""

    @classmethod
    def open(cls, path: str) -> "PreparedData":
        """Map all shards.

        Raises DataError when the directory is incomplete, of another version, damaged, or not on a
        local disk.
        """
        directory = Location.parse(path)
        if not directory.is_local:
            raise DataError(
                f"{path}: training maps prepared data into memory, so it must lie on a local or "
                "mounted disk; copy the directory there"
            )
        manifest = read_manifest(directory)
        dtype = np.dtype(manifest.token_type)
        chunks: list[TokenView] = []
        lengths: list[Int64s] = [np.zeros(0, dtype=np.int64)]
        for shard in manifest.shards:
            for batch in _open_shard(directory / shard.name, shard, dtype):
                tokens = batch.column(0)
                lengths.append(np.diff(tokens.offsets.to_numpy()))
                chunks.append(tokens.values.to_numpy(zero_copy_only=True))
        starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
        sizes = [len(part) for part in lengths[1:]]
        first = np.concatenate([[0], np.cumsum(sizes)])[:-1].astype(np.int64)
        data = cls(path, manifest, starts, chunks, first)
        if data.tokens != manifest.tokens or data.documents != manifest.documents:
            raise DataError(
                f"{path}: its shards hold {data.documents} documents and {data.tokens} tokens, the "
                f"manifest says {manifest.documents} and {manifest.tokens}; prepare the data again"
            )
        return data

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.starts) - 1

    @property
    def tokens(self) -> int:
        """Number of tokens, end-of-document tokens included."""
        return int(self.starts[-1])

    @property
    def vocab_size(self) -> int:
        """Size of the tokenizer: its largest id plus one."""
        return self.manifest.tokenizer.vocab_size

    @property
    def eod(self) -> int:
        """Id of the end-of-document token, the last of every document."""
        return self.manifest.tokenizer.eod_id

    @property
    def fingerprint(self) -> str:
        """Hash that is equal for equal tokens; a resumed run compares it."""
        return self.manifest.fingerprint

    def document(self, index: int) -> TokenView:
        """Tokens of one document in the stored order, a view that must not be written to."""
        chunk = int(np.searchsorted(self._chunk_documents, index, side="right")) - 1
        base = self.starts[self._chunk_documents[chunk]]
        return self._chunks[chunk][self.starts[index] - base : self.starts[index + 1] - base]

    def read(self, position: int, count: int) -> Int64s:
        """Copy of `count` tokens of the stored order, documents end to end, from `position` on."""
        tokens = np.empty(count, dtype=np.int64)
        index = int(np.searchsorted(self.starts, position, side="right")) - 1
        filled = 0
        while filled < count:
            rest = self.document(index)[position + filled - int(self.starts[index]) :]
            part = rest[: count - filled]
            tokens[filled : filled + len(part)] = part
            filled += len(part)
            index += 1
        return tokens

    def tokenizer(self) -> DocumentTokenizer:
        """The tokenizer that made the tokens; raises DataError when its file was changed."""
        place = Location.parse(self.path) / TOKENIZER
        entry = self.manifest.tokenizer
        loaded = DocumentTokenizer.load(
            place.read_bytes(), kind=entry.kind, eod_token=entry.eod_token
        )
        if loaded.entry != entry:
            raise DataError(f"{place}: is not the tokenizer that made the tokens beside it")
        return loaded


def _open_shard(place: Location, shard: ShardEntry, dtype: Any) -> list[Any]:
    """Record batches of one shard."""
    size = place.info().size
    if size != shard.size_bytes:
        found = "is missing" if size is None else f"has {size} bytes"
        raise DataError(
            f"{place}: {found}, the manifest says {shard.size_bytes} bytes; copy it again or "
            "prepare the data again"
        )
    try:
        # Closing gives the file descriptor back; the pages stay mapped while batches use them.
        with pa.memory_map(place.path) as file:
            reader = pa.ipc.open_file(file)
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{place}: not a readable shard ({error}); prepare it again") from error
    if reader.schema != shard_schema(dtype):
        raise DataError(f"{place}: holds {reader.schema}, expected {shard_schema(dtype)}")
    return batches


def check_vocabulary(data: PreparedData, vocab_size: int) -> None:
    """Raise ConfigError when a model with `vocab_size` rows cannot embed every token of `data`.

    A model with more rows than the tokenizer is fine.
    """
    if vocab_size < data.vocab_size:
        raise ConfigError(
            f"model.vocab_size is {vocab_size}, but the tokenizer of {data.path} has "
            f"{data.vocab_size} tokens; set model.vocab_size to at least {data.vocab_size}"
        )
