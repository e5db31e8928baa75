import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disagmoe.data import prepare as prepare_module
from disagmoe.data.plan import PrepareOptions
from disagmoe.data.prepare import Outcome, Progress, prepare
from disagmoe.data.prepared import PreparedData
from disagmoe.data.records import ReadOptions
from disagmoe.data.tokenizer import TokenizerSpec
from disagmoe.errors import DataError

Prepare = Callable[..., Outcome]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """One file of each format, with documents of 1 to 40 bytes."""
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.txt").write_text("plain text\n")
    lines = [json.dumps({"text": "line " * (i % 5 + 1)}) + "\n" for i in range(20)]
    (source / "b.jsonl").write_text("".join(lines))
    (source / "c.jsonl.gz").write_bytes(gzip.compress(b'{"text": "packed"}\n'))
    pq.write_table(pa.table({"text": ["x", "yy", "zzz"]}), source / "d.parquet", row_group_size=1)
    return source


def _files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def _texts(directory: Path) -> list[str]:
    data = PreparedData.open(str(directory))
    return [data.tokenizer().decode(data.document(i)) for i in range(data.documents)]


def test_all_formats_become_documents_in_the_order_of_the_files(
    corpus: Path, prepare_here: Prepare, tmp_path: Path
) -> None:
    outcome = prepare_here(f"{corpus}/*", out=tmp_path / "out", shard_bytes=100)
    expected = ["plain text\n", *("line " * (i % 5 + 1) for i in range(20))]
    assert _texts(tmp_path / "out") == [*expected, "packed", "x", "yy", "zzz"]
    manifest = outcome.manifest
    assert (manifest.documents, manifest.bad_records, manifest.cut_documents) == (25, 0, 0)
    assert manifest.tokens == manifest.text_bytes + 25
    assert len(manifest.shards) > 4
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_output_does_not_depend_on_the_processes(
    corpus: Path, prepare_here: Prepare, tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once here, once in two real processes that finish in any order."""
    spec = TokenizerSpec(kind=kind, vocab_size=270 if kind == "bpe" else None)
    prepare_here(f"{corpus}/*", out=tmp_path / "one", tokenizer=spec, shard_bytes=100)
    monkeypatch.undo()
    options = PrepareOptions(
        inputs=[f"{corpus}/*"],
        out=str(tmp_path / "two"),
        excludes=[],
        tokenizer=spec,
        shard_bytes=100,
        processes=2,
    )
    seen: list[Progress] = []
    prepare(options, seen.append)
    assert _files(tmp_path / "one") == _files(tmp_path / "two")
    shards = len(PreparedData.open(str(tmp_path / "two")).manifest.shards)
    assert [p.shards_done for p in seen if p.stage == "shards"] == list(range(shards + 1))
    assert [p.stage for p in seen].count("tokenizer") == (kind == "bpe")
    assert seen[-1].input_bytes_done == seen[-1].input_bytes
    assert seen[-1].text_bytes_per_s > 0


def test_long_texts_are_cut_alike_in_every_format(prepare_here: Prepare, tmp_path: Path) -> None:
    text = "some line\n" * 10
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": text}) + "\n")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(text.encode()))
    pq.write_table(pa.table({"text": [text]}), tmp_path / "d.parquet")
    read = ReadOptions(max_document_bytes=32)
    inputs = [f"{tmp_path}/{name}*" for name in "abcd"]
    outcome = prepare_here(*inputs, out=tmp_path / "out", read=read, shard_bytes=50)
    parts = ["some line\n" * 4, "some line\n" * 3, "some line\n" * 3]
    assert _texts(tmp_path / "out") == parts * 4
    assert outcome.manifest.cut_documents == 8


def test_the_same_again_is_recognised(corpus: Path, prepare_here: Prepare, tmp_path: Path) -> None:
    first = prepare_here(f"{corpus}/*", out=tmp_path / "out")
    before = _files(tmp_path / "out")
    second = prepare_here(f"{corpus}/*", out=tmp_path / "out")
    assert (first.already_prepared, second.already_prepared) == (False, True)
    assert second.manifest == first.manifest
    assert _files(tmp_path / "out") == before


def test_something_else_is_refused_and_left_alone(
    corpus: Path, prepare_here: Prepare, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    prepare_here(f"{corpus}/*", out=out)
    before = _files(out)
    bpe = TokenizerSpec(kind="bpe", vocab_size=270)
    with pytest.raises(DataError, match=r"tokenizer bytes there, bpe vocab_size=270 .* asked for"):
        prepare_here(f"{corpus}/*", out=out, tokenizer=bpe)
    with pytest.raises(DataError, match=r"input files: 3 missing \(.*a.txt\)\); delete it or"):
        prepare_here(f"{corpus}/*.parquet", out=out)
    (corpus / "a.txt").write_text("other text\n")
    (corpus / "e.txt").write_text("new")
    with pytest.raises(DataError, match=r"1 changed \(.*a.txt\), 1 new \(.*e.txt\)"):
        prepare_here(f"{corpus}/*", out=out)
    assert _files(out) == before
    assert not (tmp_path / "out.partial").exists()


def test_a_directory_of_something_else_is_refused(
    corpus: Path, prepare_here: Prepare, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"is not empty and holds no prepared data \(a.txt, ...\)"):
        prepare_here(f"{corpus}/*", out=corpus)
    with pytest.raises(DataError, match=r"a.txt: is a file, expected a directory"):
        prepare_here(f"{corpus}/*", out=corpus / "a.txt")
    (tmp_path / "x.partial").mkdir()
    (tmp_path / "x.partial" / "mine").touch()
    with pytest.raises(DataError, match=r"x.partial: is in the way"):
        prepare_here(f"{corpus}/*", out=tmp_path / "x")


def test_an_empty_directory_will_do(corpus: Path, prepare_here: Prepare, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert prepare_here(f"{corpus}/*", out=tmp_path / "out").manifest.documents == 25


def test_a_place_that_cannot_be_written_is_named(
    corpus: Path, prepare_here: Prepare, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"--out .*a.txt/out: cannot be written"):
        prepare_here(f"{corpus}/*", out=corpus / "a.txt" / "out")


class _Interrupted(BaseException):
    pass


def _interrupt_after(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = prepare_module.map_unordered

    def run(*arguments: Any) -> Iterator[Any]:
        for i, result in enumerate(real(*arguments)):
            if i == shards:
                raise _Interrupted
            yield result

    monkeypatch.setattr(prepare_module, "map_unordered", run)


@pytest.mark.parametrize("shards", [0, 1, 3])
def test_an_interrupted_run_goes_on_with_the_missing_shards(
    corpus: Path,
    prepare_here: Prepare,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shards: int,
) -> None:
    spec = TokenizerSpec(kind="bpe", vocab_size=270)
    options = {"tokenizer": spec, "shard_bytes": 100}
    prepare_here(f"{corpus}/*", out=tmp_path / "whole", **options)
    with monkeypatch.context() as patch:
        _interrupt_after(shards, patch)
        with pytest.raises(_Interrupted):
            prepare_here(f"{corpus}/*", out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out.partial" / "shard-00099.arrow.tmp-1").touch()  # of a killed process
    with monkeypatch.context() as patch:
        patch.setattr(TokenizerSpec, "build", None)  # the trained tokenizer is kept as well
        outcome = prepare_here(f"{corpus}/*", out=tmp_path / "out", **options)
    assert outcome.kept_shards == shards
    assert _files(tmp_path / "out") == _files(tmp_path / "whole")


def test_a_damaged_shard_of_an_interrupted_run_is_written_again(
    corpus: Path, prepare_here: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        _interrupt_after(2, patch)
        with pytest.raises(_Interrupted):
            prepare_here(f"{corpus}/*", out=tmp_path / "out", shard_bytes=100)
    shard = tmp_path / "out.partial" / "shard-00000.arrow"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert prepare_here(f"{corpus}/*", out=tmp_path / "out", shard_bytes=100).kept_shards == 1
    prepare_here(f"{corpus}/*", out=tmp_path / "whole", shard_bytes=100)
    assert _files(tmp_path / "out") == _files(tmp_path / "whole")


def test_an_interrupted_run_of_another_kind_is_refused(
    corpus: Path, prepare_here: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        _interrupt_after(1, patch)
        with pytest.raises(_Interrupted):
            prepare_here(f"{corpus}/*", out=tmp_path / "out", shard_bytes=100)
    expected = r"out.partial: was prepared differently \(shard_bytes 100 there, 200 asked for\)"
    with pytest.raises(DataError, match=expected):
        prepare_here(f"{corpus}/*", out=tmp_path / "out", shard_bytes=200)
    (tmp_path / "out.partial" / "plan.json").write_text("{")
    with pytest.raises(DataError, match=r"plan.json: is damaged; delete .*out.partial"):
        prepare_here(f"{corpus}/*", out=tmp_path / "out", shard_bytes=100)


def test_a_run_interrupted_while_publishing_is_published(
    corpus: Path, prepare_here: Prepare, tmp_path: Path
) -> None:
    prepare_here(f"{corpus}/*", out=tmp_path / "out")
    whole = _files(tmp_path / "out")
    shutil.move(tmp_path / "out", tmp_path / "out.partial")
    outcome = prepare_here(f"{corpus}/*", out=tmp_path / "out")
    assert outcome.kept_shards == len(outcome.manifest.shards)
    assert _files(tmp_path / "out") == whole


def _broken(corpus: Path) -> None:
    with open(corpus / "b.jsonl", "a") as file:
        file.write("{\n")
    (corpus / "c.jsonl.gz").write_bytes((corpus / "c.jsonl.gz").read_bytes()[:-4])
    (corpus / "d.parquet").write_bytes(b"PAR1")
    (corpus / "e.txt").write_bytes(b"abc\xff")


def test_bad_records_are_an_error_and_nothing_is_left(
    corpus: Path, prepare_here: Prepare, tmp_path: Path
) -> None:
    _broken(corpus)
    expectations = {
        "b.jsonl": r"b.jsonl:21: not valid JSON",
        "c.jsonl.gz": r"c.jsonl.gz: cannot be read \(Truncated compressed stream\)",
        "d.parquet": r"d.parquet: not a complete Parquet file",
        "e.txt": r"e.txt, byte 3: not valid UTF-8",
    }
    for name, expected in expectations.items():
        with pytest.raises(DataError, match=expected + r".*; mend it, leave the file out with"):
            prepare_here(f"{corpus}/{name}", out=tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_skipped_records_are_counted_and_listed(
    corpus: Path, prepare_here: Prepare, tmp_path: Path
) -> None:
    _broken(corpus)
    out = tmp_path / "out"
    manifest = prepare_here(f"{corpus}/*", out=out, skip_bad_records=True).manifest
    assert manifest.bad_records == len(manifest.bad_record_list) == 4
    listed = {Path(record.file).name: record.record for record in manifest.bad_record_list}
    assert listed == {
        "b.jsonl": "line 21",
        "c.jsonl.gz": "file",
        "d.parquet": "file",
        "e.txt": "byte 3",
    }
    assert manifest.documents >= 21
    again = prepare_here(f"{corpus}/*", out=out, skip_bad_records=True)
    assert again.already_prepared
    with pytest.raises(DataError, match=r"not a complete Parquet file"):
        prepare_here(f"{corpus}/*", out=out)


def test_a_bad_record_keeps_the_finished_shards_for_a_run_that_skips_it(
    corpus: Path, prepare_here: Prepare, tmp_path: Path
) -> None:
    (corpus / "e.txt").write_bytes(b"abc\xff")
    options = {"out": tmp_path / "out", "shard_bytes": 100}
    expected = r"e.txt, byte 3: .*\n(\d+) of (\d+) shards are finished and kept in .*out.partial"
    with pytest.raises(DataError, match=expected):
        prepare_here(f"{corpus}/*", **options)
    outcome = prepare_here(f"{corpus}/*", skip_bad_records=True, **options)
    assert outcome.kept_shards == len(outcome.manifest.shards) - 1
    assert outcome.manifest.bad_records == 1
    prepare_here(f"{corpus}/*", out=tmp_path / "once", shard_bytes=100, skip_bad_records=True)
    assert _files(tmp_path / "out") == _files(tmp_path / "once")


def test_input_without_documents_is_refused(prepare_here: Prepare, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match=r"the input holds no document \(1 files\)$"):
        prepare_here(tmp_path / "a.jsonl", out=tmp_path / "out")
    (tmp_path / "a.jsonl").write_text("{\n")
    expected = r"no document \(1 files\); the first of 1 bad records: .*a.jsonl:1: not valid JSON"
    with pytest.raises(DataError, match=expected):
        prepare_here(tmp_path / "a.jsonl", out=tmp_path / "out", skip_bad_records=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_shared_tokenizer_file_gives_the_same_ids(
    corpus: Path, prepare_here: Prepare, tmp_path: Path
) -> None:
    spec = TokenizerSpec(kind="bpe", vocab_size=270)
    prepare_here(f"{corpus}/*", out=tmp_path / "first", tokenizer=spec)
    saved = (tmp_path / "first" / "tokenizer.json").read_bytes()
    given = TokenizerSpec(kind="file", file=saved)
    prepare_here(f"{corpus}/*", out=tmp_path / "second", tokenizer=given)
    first, second = (PreparedData.open(str(tmp_path / name)) for name in ("first", "second"))
    assert first.fingerprint == second.fingerprint
    assert second.manifest.tokenizer.kind == "file"
