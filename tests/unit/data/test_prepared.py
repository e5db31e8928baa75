import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from disagmoe.data.prepared import PreparedData, check_vocabulary
from disagmoe.errors import ConfigError, DataError

MakeData = Callable[[list[str]], PreparedData]


def test_documents_come_back_in_stored_order(make_data: MakeData) -> None:
    texts = ["one", "two\n", "caf\u00e9", "x" * 200, "end"]
    data = make_data(texts)
    assert len(data.manifest.shards) > 1
    assert (data.documents, data.vocab_size, data.eod) == (5, 257, 256)
    assert [data.document(i).tolist() for i in range(5)] == [
        [*text.encode(), 256] for text in texts
    ]
    assert data.tokens == sum(len(text.encode()) + 1 for text in texts)
    assert [data.tokenizer().decode(data.document(i)) for i in range(5)] == texts


def test_documents_are_views_of_mapped_pages(make_data: MakeData) -> None:
    data = make_data(["hello"])
    before = pa.total_allocated_bytes()
    document = data.document(0)
    assert pa.total_allocated_bytes() == before
    assert document.base is not None
    assert not document.flags.writeable


def test_tokens_are_read_across_documents_and_shards(make_data: MakeData) -> None:
    data = make_data(["one", "two\n", "x" * 200, "y", "end"])
    assert len(data.manifest.shards) > 1
    tokens = [token for d in range(data.documents) for token in data.document(d).tolist()]
    for position, count in ((0, data.tokens), (2, 5), (3, 1), (4, 0), (8, 205), (data.tokens, 0)):
        assert data.read(position, count).tolist() == tokens[position : position + count]


def test_fingerprint_follows_the_tokens(make_data: MakeData) -> None:
    first, same, other = make_data(["ab", "c"]), make_data(["ab", "c"]), make_data(["ab", "d"])
    assert first.fingerprint == same.fingerprint
    assert first.fingerprint != other.fingerprint


def test_directory_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no prepared data \(manifest.json is missing\)"):
        PreparedData.open(str(tmp_path))


def test_remote_directory_is_refused() -> None:
    with pytest.raises(DataError, match=r"must lie on a local or mounted disk"):
        PreparedData.open("mock:///data")


def test_other_format_version_is_refused(make_data: MakeData) -> None:
    path = Path(make_data(["a"]).path) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["identity"]["format_version"] = 2
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"format version 2, this program reads 1; prepare"):
        PreparedData.open(str(path.parent))


def test_broken_manifest_is_refused(make_data: MakeData) -> None:
    path = Path(make_data(["a"]).path) / "manifest.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match=r"manifest.json: not a manifest that this version reads"):
        PreparedData.open(str(path.parent))


def test_shard_cut_short_or_missing_is_refused(make_data: MakeData) -> None:
    shard = Path(make_data(["a"]).path) / "shard-00000.arrow"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    expected = rf"shard-00000.arrow: has {len(content) - 1} bytes, the manifest says {len(content)}"
    with pytest.raises(DataError, match=expected):
        PreparedData.open(str(shard.parent))
    shard.unlink()
    with pytest.raises(DataError, match=r"shard-00000.arrow: is missing, the manifest says"):
        PreparedData.open(str(shard.parent))


def test_shard_of_other_content_is_refused(make_data: MakeData) -> None:
    shard = Path(make_data(["a"]).path) / "shard-00000.arrow"
    shard.write_bytes(bytes(len(shard.read_bytes())))
    with pytest.raises(DataError, match=r"shard-00000.arrow: not a readable shard"):
        PreparedData.open(str(shard.parent))


def test_manifest_that_counts_otherwise_is_refused(make_data: MakeData) -> None:
    path = Path(make_data(["a"]).path) / "manifest.json"
    manifest = json.loads(path.read_text()) | {"tokens": 3}
    path.write_text(json.dumps(manifest))
    with pytest.raises(
        DataError, match=r"hold 1 documents and 2 tokens, the manifest says 1 and 3"
    ):
        PreparedData.open(str(path.parent))


def test_other_tokenizer_is_refused(make_data: MakeData) -> None:
    data = make_data(["a"])
    path = Path(data.path) / "tokenizer.json"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(DataError, match=r"is not the tokenizer that made the tokens beside it"):
        data.tokenizer()


def test_data_may_move(make_data: MakeData, tmp_path: Path) -> None:
    data = make_data(["hello"])
    shutil.move(data.path, tmp_path / "elsewhere")
    moved = PreparedData.open(str(tmp_path / "elsewhere"))
    assert np.array_equal(moved.document(0), [*b"hello", 256])


def test_model_must_embed_every_token(make_data: MakeData) -> None:
    data = make_data(["a"])
    check_vocabulary(data, 257)
    check_vocabulary(data, 512)
    expected = r"model.vocab_size is 256, but the tokenizer of .* has 257 tokens; .* at least 257"
    with pytest.raises(ConfigError, match=expected):
        check_vocabulary(data, 256)
