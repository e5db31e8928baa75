import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from disagmoe.cli.data import app, repeat_option
from disagmoe.data import prepare as prepare_module
from disagmoe.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def _in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(start: Any, arguments: Any, jobs: Any, processes: int) -> Iterator[Any]:
        work = start(*arguments)
        for job in jobs:
            yield work(job)

    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setattr(prepare_module, "map_unordered", run)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"text {name}\n" * 3)
    return [str(tmp_path / f"{name}.txt") for name in "abc"]


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["prepare", *arguments])


def test_options_that_take_several_values() -> None:
    names = ("--input", "--exclude")
    given_words = ["--input", "a", "b", "--out", "d", "--exclude", "e", "f", "--json"]
    assert repeat_option(given_words, names) == [
        *("--input", "a", "--input", "b", "--out", "d"),
        *("--exclude", "e", "--exclude", "f", "--json"),
    ]


@given(st.lists(st.sampled_from(["--input", "--out", "--json", "--input=x", "a", "b"])))
def test_repeating_twice_changes_nothing_more(words: list[str]) -> None:
    once = repeat_option(words, ("--input",))
    assert [word for word in once if word != "--input"] == [w for w in words if w != "--input"]


def test_json_is_one_object_and_the_rest_goes_to_stderr(files: list[str], tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    arguments = ["--input", *files, "--exclude", "*/c.txt", "--tokenizer", "bytes", "--out", out]
    result = _run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found.pop("elapsed_s") > 0
    assert found.pop("text_mb_per_s") > 0
    assert len(found.pop("fingerprint")) == 64
    assert found == {
        "out": out,
        "already_prepared": False,
        "kept_shards": 0,
        "documents": 2,
        "tokens": 44,
        "text_bytes": 42,
        "vocab_size": 257,
        "eod_id": 256,
        "shards": 1,
        "cut_documents": 0,
        "bad_records": 0,
    }
    assert result.stderr.splitlines()[0] == "0/1 shards, 0 B of 42 B"
    assert "2 documents, 44 tokens (0.95 bytes each), vocabulary 257, 1 shards" in result.stderr
    again = _run(*arguments)
    assert again.stdout == ""
    assert again.stderr.startswith(f"{out}: already prepared from this input\n")


def test_default_is_a_bpe_trained_on_the_input(files: list[str], tmp_path: Path) -> None:
    result = _run("--input", *files, "--out", str(tmp_path / "out"), "--json")
    assert json.loads(result.stdout)["vocab_size"] > 257
    assert result.stderr.splitlines()[0] == "training the tokenizer"


def test_skipped_records_are_shown(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "d.txt").touch()
    out = str(tmp_path / "out")
    skip = ["--on-bad-record", "skip"]
    result = _run("--input", f"{tmp_path}/*.txt", "--tokenizer", "bytes", "--out", out, *skip)
    assert f"skipped {tmp_path}/d.txt: is empty" in result.stderr


def test_errors_are_errors_of_the_package(files: list[str], tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    missing = _run("--input", f"{tmp_path}/*.rs", "--out", out)
    assert isinstance(missing.exception, DataError)
    wrong = _run("--input", *files, "--out", out, "--tokenizer", "bytes", "--vocab-size", "300")
    assert isinstance(wrong.exception, ConfigError)
    absent = _run("--input", *files, "--out", out, "--tokenizer", "absent.json")
    assert isinstance(absent.exception, ConfigError)
    assert "expected the path of a tokenizer.json, bpe or bytes" in str(absent.exception)
    assert not (tmp_path / "out").exists()


def test_an_interrupt_says_what_is_kept(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare_module, "prepare", interrupted)
    result = _run("--input", *files, "--out", str(tmp_path / "out"))
    assert result.exit_code == 130
    assert "finished shards are kept in" in result.stderr
    assert "out.partial" in result.stderr
