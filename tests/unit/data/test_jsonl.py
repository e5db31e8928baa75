import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.data import jsonl
from disagmoe.data.jsonl import read_jsonl
from disagmoe.data.manifest import BadRecord
from disagmoe.data.records import Document, Piece, ReadOptions, Record
from disagmoe.storage import Location


def _read(path: Path, edges: list[int] | None = None) -> list[Record]:
    bounds = [0, *(edges or []), path.stat().st_size]
    records: list[Record] = []
    for start, stop in pairwise(bounds):
        piece = Piece(str(path), "jsonl", start, stop, stop - start)
        records += read_jsonl(Location.parse(str(path)), piece, ReadOptions())
    return records


@given(
    lines=st.lists(st.sampled_from(["a", "bb", "\u20ac" * 3, "BROKEN", ""]), min_size=1),
    edges=st.sets(st.integers(1, 60)),
    last=st.sampled_from(["\n", ""]),
)
def test_ranges_give_the_records_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], edges: set[int], last: str
) -> None:
    """Every line once, bad ones under their line number, wherever the file is divided."""
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    encoded = {"BROKEN": "{", "": ""}
    rows = [encoded.get(line, json.dumps({"text": line}, ensure_ascii=False)) for line in lines]
    path.write_text("\n".join(rows) + last + "\n")
    whole = _read(path)
    assert _read(path, sorted(edge for edge in edges if edge < path.stat().st_size)) == whole
    assert [record.text for record in whole if isinstance(record, Document)] == [
        line for line in lines if line not in encoded
    ]
    assert [record.record for record in whole if isinstance(record, BadRecord)] == [
        f"line {i}" for i, line in enumerate(lines, start=1) if line == "BROKEN"
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", r"not valid JSON (Expecting property name"),
        (b"[1]", "expected a JSON object, got list"),
        (b'{"body": "x", "id": 1}', "has no field 'text'; its fields are: body, id (--text-field)"),
        (b'{"text": 3}', "'text' is int, expected a string"),
        (b'{"text": null}', "'text' is null, expected a string"),
        (b'{"text": ""}', "'text' is empty"),
        (b'{"text": "\\ud800"}', "'text' holds a lone surrogate"),
        (b'{"text": "\xff"}', "not valid UTF-8 (invalid start byte at byte 10 of the line)"),
    ],
)
def test_bad_lines_say_where_and_why(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + line + b"\n")
    good, bad = _read(path)
    assert good == Document("good")
    assert isinstance(bad, BadRecord)
    assert str(bad).startswith(f"{path}:2: {reason}")


def test_empty_file_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b""))
    assert _read(path) == [BadRecord(file=str(path), record="file", reason="is empty")]


def test_gzip_cut_short_keeps_whole_lines_and_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n')[:-4])
    *documents, bad = _read(path)
    assert all(record == Document("a") for record in documents)
    assert isinstance(bad, BadRecord)
    assert str(bad) == f"{path}: cannot be read (Truncated compressed stream)"


def test_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "a.jsonl"
    path.write_text("x" * 1001)
    (bad,) = _read(path)
    assert isinstance(bad, BadRecord)
    assert bad.reason == "cannot be read (a line is longer than 1000 B; are these JSON lines?)"
