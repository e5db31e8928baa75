import gzip
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.data.manifest import BadRecord
from disagmoe.data.records import Document, Piece, ReadOptions, Record
from disagmoe.data.textfile import cut_stream, cut_text, read_text, window_bytes
from disagmoe.storage import Location

texts = st.text(st.sampled_from("ab\n\u00e9\u20ac\U0001f600"), max_size=200)


def _read(path: Path, limit: int = 1000, bounds: list[int] | None = None) -> list[Record]:
    """Records of all pieces of a file that is cut at `bounds`."""
    size = path.stat().st_size
    edges = [0, *(bounds or []), size]
    options = ReadOptions(max_document_bytes=limit)
    records: list[Record] = []
    for start, stop in pairwise(edges):
        piece = Piece(str(path), "text", start, stop, stop - start)
        records += read_text(Location.parse(str(path)), piece, options)
    return records


@given(texts, st.integers(16, 64), st.integers(1, 50))
def test_parts_are_the_text_whatever_the_blocks(text: str, limit: int, block: int) -> None:
    data = text.encode()
    blocks = [data[i : i + block] for i in range(0, len(data), block)]
    parts = list(cut_stream(iter(blocks), 0, None, limit))
    assert b"".join(part for _, part in parts) == data
    assert parts == list(cut_stream(iter([data]), 0, None, limit))
    longest = limit + window_bytes(limit)
    for offset, part in parts:
        assert 0 < len(part.decode().encode()) <= longest
        assert data[offset : offset + len(part)] == part


@given(text=texts, step=st.integers(1, 4))
def test_pieces_give_the_documents_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, text: str, step: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "file.txt"
    path.write_bytes(text.encode())
    limit = 16
    bounds = list(range(step * limit, path.stat().st_size, step * limit))
    whole = _read(path, limit)
    assert _read(path, limit, bounds) == whole
    documents = [record for record in whole if isinstance(record, Document)]
    assert "".join(document.text for document in documents) == text
    assert [document.cut for document in documents] == [True] * (len(documents) - 1) + [False][
        : len(documents)
    ]


def test_cut_prefers_line_ends() -> None:
    options = ReadOptions(max_document_bytes=16)
    text = "0123456789abcdef01\nrest of it"
    assert list(cut_text(text, options)) == [
        Document("0123456789abcdef01\n", cut=True),
        Document("rest of it"),
    ]
    assert list(cut_text("x" * 16, options)) == [Document("x" * 16)]


def test_short_text_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("line\nline\n")
    assert _read(path) == [Document("line\nline\n")]


def test_empty_file_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.touch()
    assert _read(path) == [BadRecord(file=str(path), record="file", reason="is empty")]
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(b""))
    assert _read(packed) == [BadRecord(file=str(packed), record="file", reason="is empty")]


def test_invalid_utf8_names_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 20 + b"\n" + b"y" * 5 + b"\xff" + b"z" * 20)
    reason = "not valid UTF-8 (invalid start byte)"
    assert _read(path) == [BadRecord(file=str(path), record="byte 26", reason=reason)]
    assert _read(path, limit=16) == [
        Document("x" * 20 + "\n", cut=True),
        BadRecord(file=str(path), record="byte 26", reason=reason),
        Document("z" * 15),
    ]


def test_compressed_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"hello\n"))
    assert _read(path) == [Document("hello\n")]


def test_compressed_file_cut_short_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(bytes(range(97, 120)) * 50)[:-6])
    (record,) = _read(path)
    assert isinstance(record, BadRecord)
    assert str(record) == f"{path}: cannot be read (Truncated compressed stream)"
