from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disagmoe.data.manifest import BadRecord
from disagmoe.data.parquet import open_parquet, read_parquet
from disagmoe.data.records import Document, Piece, ReadOptions, Record
from disagmoe.errors import DataError
from disagmoe.storage import Location


def _write(path: Path, column: Any, row_group_size: int = 2, name: str = "text") -> Path:
    table = pa.table({name: column, "id": range(len(column))})
    pq.write_table(table, path, row_group_size=row_group_size, compression="none")
    return path


def _read(path: Path, start: int, stop: int) -> list[Record]:
    piece = Piece(str(path), "parquet", start, stop, 1)
    return list(read_parquet(Location.parse(str(path)), piece, ReadOptions()))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary("int32", "string")])
def test_row_groups_give_their_rows(tmp_path: Path, kind: Any) -> None:
    path = _write(tmp_path / "a.parquet", pa.array(["a", "b", "c", "b", "e"]).cast(kind))
    assert _read(path, 0, 3) == [Document(text) for text in "abcbe"]
    assert _read(path, 1, 2) == [Document("c"), Document("b")]


def test_bad_rows_are_numbered_in_the_file(tmp_path: Path) -> None:
    broken = pa.StringArray.from_buffers(
        5,
        pa.py_buffer(b"".join(i.to_bytes(4, "little") for i in (0, 1, 2, 2, 4, 5))),
        pa.py_buffer(b"abc\xffe"),
    )
    path = _write(tmp_path / "a.parquet", broken)
    reason = "not valid UTF-8 (invalid start byte at byte 1 of the text)"
    assert _read(path, 1, 3) == [
        BadRecord(file=str(path), record="row 2", reason="'text' is empty"),
        BadRecord(file=str(path), record="row 3", reason=reason),
        Document("e"),
    ]
    nulls = _write(tmp_path / "b.parquet", pa.array(["a", None]))
    reason = "'text' is null, expected a string"
    assert _read(nulls, 0, 1)[1] == BadRecord(file=str(nulls), record="row 1", reason=reason)


def test_damaged_row_group_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.parquet", pa.array(["hello"] * 4))
    content = bytearray(path.read_bytes())
    offset = pq.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
    content[offset : offset + 8] = b"\xff" * 8
    path.write_bytes(content)
    *good, bad = _read(path, 0, 2)
    assert good == [Document("hello")] * 2
    assert isinstance(bad, BadRecord)
    assert str(bad).startswith(f"{path}, row group 1: cannot be read (")


def test_truncated_file_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.parquet", pa.array(["a"]))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"a.parquet: not a complete Parquet file \("):
        open_parquet(Location.parse(str(path)), "text")


def test_wrong_column_names_the_others(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.parquet", pa.array(["a"]), name="body")
    with pytest.raises(DataError, match=r"no column 'text'; its columns are: body, id .--text-fi"):
        open_parquet(Location.parse(str(path)), "text")
    with pytest.raises(DataError, match=r"column 'id' is int64, expected string"):
        open_parquet(Location.parse(str(path)), "id")
