"""Preparing data inside the test process, which saves the start of fresh ones."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from disagmoe.data import prepare as prepare_module
from disagmoe.data.plan import PrepareOptions
from disagmoe.data.prepare import Outcome, prepare
from disagmoe.data.prepared import PreparedData
from disagmoe.data.tokenizer import TokenizerSpec


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write shards in this process, one after the other."""

    def run(start: Any, arguments: Any, jobs: Any, processes: int) -> Iterator[Any]:
        work = start(*arguments)
        for job in jobs:
            yield work(job)

    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setattr(prepare_module, "map_unordered", run)


@pytest.fixture
def prepare_here(in_process: None) -> Callable[..., Outcome]:
    """Prepare with bytes and no progress; keywords are PrepareOptions."""

    def run(*inputs: Path | str, out: Path, **options: Any) -> Outcome:
        values = {"tokenizer": TokenizerSpec(kind="bytes"), "excludes": []} | options
        wanted = PrepareOptions(inputs=[str(i) for i in inputs], out=str(out), **values)
        return prepare(wanted, lambda progress: None)

    return run


@pytest.fixture
def make_data(prepare_here: Callable[..., Outcome], tmp_path: Path) -> Callable[..., PreparedData]:
    """Prepared bytes of the given texts, one document each, in their order."""
    made = 0

    def make(texts: list[str]) -> PreparedData:
        nonlocal made
        made += 1
        source = tmp_path / f"source{made}"
        source.mkdir()
        for i, text in enumerate(texts):
            (source / f"{i:04d}.txt").write_text(text)
        prepare_here(f"{source}/*.txt", out=tmp_path / f"data{made}", shard_bytes=64)
        return PreparedData.open(str(tmp_path / f"data{made}"))

    return make
