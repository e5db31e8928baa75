from pathlib import Path

import pytest

from disagmoe.data.manifest import Identity
from disagmoe.data.plan import Plan
from disagmoe.data.records import Piece, ReadOptions
from disagmoe.data.sample import sample_texts
from disagmoe.errors import DataError


def _plan(tmp_path: Path, shards: list[list[bytes]]) -> Plan:
    pieces = []
    for i, contents in enumerate(shards):
        shard = []
        for j, content in enumerate(contents):
            path = tmp_path / f"{i}-{j}.txt"
            path.write_bytes(content)
            shard.append(Piece(str(path), "text", 0, len(content), len(content)))
        pieces.append(shard)
    identity = Identity(
        tokenizer="bpe", text_field="text", max_document_bytes=100, shard_bytes=1, sources=[]
    )
    return Plan(identity, pieces, [])


def _sample(plan: Plan, limit: int, *, skip: bool = False) -> list[str]:
    return list(sample_texts(plan, ReadOptions(), limit_bytes=limit, skip_bad_records=skip))


def test_all_of_a_small_input(tmp_path: Path) -> None:
    plan = _plan(tmp_path, [[b"aa", b"bb"], [b"cc"]])
    assert _sample(plan, 1000) == ["aa", "bb", "cc"]


def test_every_shard_gives_its_share(tmp_path: Path) -> None:
    plan = _plan(tmp_path, [[b"aa", b"bb"], [b"cc", b"dd"], [b"ee", b"ff"]])
    assert _sample(plan, 6) == ["aa", "cc", "ee"]


def test_a_large_document_uses_up_the_share_of_others(tmp_path: Path) -> None:
    plan = _plan(tmp_path, [[b"a" * 9], [b"bb"], [b"cc"], [b"dd"]])
    assert _sample(plan, 12) == ["a" * 9, "dd"]


def test_bad_records_are_refused_or_passed_over(tmp_path: Path) -> None:
    plan = _plan(tmp_path, [[b"\xff", b"bb"]])
    assert _sample(plan, 100, skip=True) == ["bb"]
    with pytest.raises(DataError, match=r"0-0.txt, byte 0: not valid UTF-8"):
        _sample(plan, 100)
