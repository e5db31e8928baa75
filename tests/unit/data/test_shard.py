from pathlib import Path

import pyarrow as pa
import pytest

from disagmoe.data import shard as shard_module
from disagmoe.data.records import Piece, ReadOptions
from disagmoe.data.shard import ShardJob, write_shard
from disagmoe.data.tokenizer import bytes_tokenizer
from disagmoe.errors import DataError


def _job(tmp_path: Path, content: str, **changes: bool) -> ShardJob:
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    piece = Piece(str(path), "jsonl", 0, len(content), len(content))
    skip = changes.get("skip", False)
    return ShardJob(3, [piece], str(tmp_path / "out"), ReadOptions(), skip)


def _lines(count: int) -> str:
    return "".join(f'{{"text": "document {i}"}}\n' for i in range(count))


def test_rows_are_written_in_bounded_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    job = _job(tmp_path, _lines(50))
    whole = write_shard(job, bytes_tokenizer()).entry
    monkeypatch.setattr(shard_module, "ENCODE_BYTES", 30)
    monkeypatch.setattr(shard_module, "ROWS_BYTES", 100)
    entry = write_shard(job, bytes_tokenizer()).entry
    assert (entry.documents, entry.tokens) == (whole.documents, whole.tokens) == (50, 590)
    path = tmp_path / "out" / "shard-00003.arrow"
    assert path.stat().st_size == entry.size_bytes
    reader = pa.ipc.open_file(path)
    assert reader.schema == pa.schema(
        [pa.field("tokens", pa.large_list(pa.uint16()), nullable=False)]
    )
    sizes = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
    assert max(sizes) <= 6
    assert sum(sizes) == 50


def test_a_failed_shard_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match=r"a.jsonl:3: not valid JSON"):
        write_shard(_job(tmp_path, _lines(2) + "{\n"), bytes_tokenizer())
    assert list((tmp_path / "out").iterdir()) == []


def test_skipped_records_are_listed_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(shard_module, "LISTED_BAD_RECORDS", 2)
    job = _job(tmp_path, "{\n" * 5 + _lines(1), skip=True)
    result = write_shard(job, bytes_tokenizer())
    assert (result.entry.bad_records, result.entry.documents) == (5, 1)
    assert [record.record for record in result.bad] == ["line 1", "line 2"]


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"shard-00003.arrow: cannot be written"):
        write_shard(_job(tmp_path, _lines(1)), bytes_tokenizer())
