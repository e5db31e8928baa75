from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disagmoe.data.manifest import BadRecord
from disagmoe.data.plan import Plan, PrepareOptions, make_plan
from disagmoe.data.records import ReadOptions
from disagmoe.data.tokenizer import TokenizerSpec
from disagmoe.errors import DataError
from disagmoe.units import MIB


def _plan(tmp_path: Path, **options: Any) -> Plan:
    values = {
        "inputs": [f"{tmp_path}/*"],
        "out": "unused",
        "excludes": [],
        "tokenizer": TokenizerSpec(kind="bytes"),
    }
    return make_plan(PrepareOptions(**(values | options)))


def _pieces(plan: Plan) -> list[list[tuple[str, int, int]]]:
    return [[(Path(p.path).name, p.start, p.stop) for p in shard] for shard in plan.shards]


def test_small_files_share_a_shard_and_large_ones_are_divided(tmp_path: Path) -> None:
    for name, size in (("a.txt", 30), ("b.txt", 80), ("c.jsonl", 250), ("d.txt", 250)):
        (tmp_path / name).write_bytes(b"x" * size)
    read = ReadOptions(max_document_bytes=40)
    plan = _plan(tmp_path, shard_bytes=100, read=read)
    assert _pieces(plan) == [
        [("a.txt", 0, 30), ("b.txt", 0, 80)],
        [("c.jsonl", 0, 100)],
        [("c.jsonl", 100, 200)],
        [("c.jsonl", 200, 250), ("d.txt", 0, 80)],
        [("d.txt", 80, 240)],
        [("d.txt", 240, 250)],
    ]
    assert plan.input_bytes == 610


def test_parquet_is_divided_by_row_groups_and_gzip_not_at_all(tmp_path: Path) -> None:
    plain = {"use_dictionary": False, "write_statistics": False}
    table = pa.table({"text": ["x" * 1000 + str(i) for i in range(6)], "n": range(6)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1, **plain)
    (tmp_path / "b.jsonl.gz").write_bytes(b"x" * 9000)
    plan = _plan(tmp_path, shard_bytes=2000)
    assert _pieces(plan) == [
        [("a.parquet", 0, 2)],
        [("a.parquet", 2, 4)],
        [("a.parquet", 4, 6)],
        [("b.jsonl.gz", 0, 9000)],
    ]


def test_format_goes_by_name_unless_given(tmp_path: Path) -> None:
    for name in ("a.json", "b.jsonl.zst", "c.ndjson", "d.md", "e.py.gz"):
        (tmp_path / name).write_bytes(b"x")
    formats = [source.format for source in _plan(tmp_path).identity.sources]
    assert formats == ["jsonl", "jsonl", "jsonl", "text", "text"]
    formats = [source.format for source in _plan(tmp_path, format="text").identity.sources]
    assert formats == ["text"] * 5


def test_default_shard_is_a_share_of_the_input_within_bounds(tmp_path: Path) -> None:
    def sparse(size: int) -> int:
        with open(tmp_path / "a.jsonl", "wb") as file:
            file.truncate(size)
        return _plan(tmp_path).identity.shard_bytes

    assert sparse(5) == 1 * MIB
    assert sparse(640 * MIB) == 10 * MIB
    assert sparse(2**20 * MIB) == 256 * MIB


def test_unusable_files_are_refused_or_listed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("fine")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 cut")
    (tmp_path / "c.txt").touch()
    with pytest.raises(DataError, match=r"b.parquet: not a complete Parquet file .* --on-bad-rec"):
        _plan(tmp_path)
    with pytest.raises(DataError, match=r"c.txt: is empty; mend it, leave the file out with --ex"):
        _plan(tmp_path, excludes=["*.parquet"])
    plan = _plan(tmp_path, skip_bad_records=True)
    assert _pieces(plan) == [[("a.txt", 0, 4)]]
    broken, empty = plan.bad
    assert broken.file == f"{tmp_path}/b.parquet"
    assert broken.reason.startswith("not a complete Parquet file (")
    assert empty == BadRecord(file=f"{tmp_path}/c.txt", record="file", reason="is empty")


def test_document_limit_has_a_floor(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--max-document-bytes must be at least 16"):
        _plan(tmp_path, read=ReadOptions(max_document_bytes=15))
