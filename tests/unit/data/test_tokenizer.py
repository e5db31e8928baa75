import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from disagmoe.data.tokenizer import (
    EOD_TOKEN,
    DocumentTokenizer,
    TokenizerSpec,
    bytes_tokenizer,
    train_bpe,
)
from disagmoe.errors import ConfigError, DataError

TEXT = "the cat sat on the mat\nthe dog sat on the log\n" * 4


def _word_level(*special: str, vocab_size: int = 3) -> bytes:
    vocab = {f"w{i}": i for i in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    return tokenizer.to_str().encode()


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_bytes_equal_what_their_saved_tokenizer_gives(text: str) -> None:
    tokenizer = bytes_tokenizer()
    (tokens,) = tokenizer.encode([text])
    assert tokens.tolist() == [*text.encode(), 256]
    saved = Tokenizer.from_str(tokenizer.json.decode())
    saved.encode_special_tokens = True
    assert saved.encode(text).ids == tokens[:-1].tolist()
    assert tokenizer.decode(tokens) == text


def test_bytes_entry() -> None:
    entry = bytes_tokenizer().entry
    assert (entry.kind, entry.vocab_size, entry.eod_token, entry.eod_id) == (
        "bytes",
        257,
        EOD_TOKEN,
        256,
    )


def test_bpe_merges_and_comes_back() -> None:
    tokenizer = train_bpe([TEXT], 270)
    tokens, empty = tokenizer.encode([TEXT, ""])
    assert tokenizer.entry.vocab_size == 270
    assert len(tokens) < len(TEXT) * 0.6
    assert tokenizer.decode(tokens) == TEXT
    assert empty.tolist() == [tokenizer.entry.eod_id]


def test_bpe_depends_on_the_text_alone() -> None:
    assert train_bpe([TEXT, "abc"], 280).json == train_bpe(iter([TEXT, "abc"]), 280).json


def test_bpe_of_little_text_is_smaller_than_asked() -> None:
    assert train_bpe(["abc"], 4096).entry.vocab_size == 259


@pytest.mark.parametrize("tokenizer", [bytes_tokenizer(), train_bpe([TEXT], 280)])
def test_the_eod_token_in_a_text_is_ordinary_text(tokenizer: DocumentTokenizer) -> None:
    (tokens,) = tokenizer.encode([f"a{EOD_TOKEN}b"])
    assert np.flatnonzero(tokens == tokenizer.entry.eod_id).tolist() == [len(tokens) - 1]


def test_file_with_a_usual_end_of_document() -> None:
    tokenizer = DocumentTokenizer.load(_word_level("<s>", "</s>"), kind="file", eod_token=None)
    assert (tokenizer.entry.eod_token, tokenizer.entry.eod_id) == ("</s>", 4)
    assert [row.tolist() for row in tokenizer.encode(["w1 w2", "w2"])] == [[1, 2, 4], [2, 4]]


def test_file_with_a_named_end_of_document() -> None:
    content = _word_level("</s>", "<stop>")
    assert DocumentTokenizer.load(content, kind="file", eod_token="<stop>").entry.eod_id == 4
    with pytest.raises(DataError, match=r"has no token '<end>'; name one with --eod-token \(its "):
        DocumentTokenizer.load(content, kind="file", eod_token="<end>")


def test_file_without_end_of_document_lists_its_special_tokens() -> None:
    with pytest.raises(DataError, match=r"none of the usual .* special tokens: <a>, <b>\)"):
        DocumentTokenizer.load(_word_level("<b>", "<a>"), kind="file", eod_token=None)


def test_truncation_and_padding_of_a_file_are_turned_off() -> None:
    tokenizer = Tokenizer.from_str(_word_level("</s>").decode())
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    loaded = DocumentTokenizer.load(tokenizer.to_str().encode(), kind="file", eod_token=None)
    assert loaded.encode(["w1 w2 w1 w2"])[0].tolist() == [1, 2, 1, 2, 3]


def test_large_vocabulary_takes_four_bytes() -> None:
    small = DocumentTokenizer.load(
        _word_level("</s>", vocab_size=65535), kind="file", eod_token=None
    )
    large = DocumentTokenizer.load(
        _word_level("</s>", vocab_size=65536), kind="file", eod_token=None
    )
    assert small.dtype is np.uint16
    assert large.dtype is np.uint32
    assert large.encode(["w65535"])[0].tolist() == [65535, 65536]


def test_vocabulary_with_holes_counts_to_the_largest_id() -> None:
    content = json.loads(_word_level("</s>"))
    content["model"]["vocab"]["far"] = 99
    loaded = DocumentTokenizer.load(json.dumps(content).encode(), kind="file", eod_token=None)
    assert loaded.entry.vocab_size == 100


def test_what_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(DataError, match=r"not a tokenizer.json that tokenizers reads"):
        DocumentTokenizer.load(b"{}", kind="file", eod_token=None)


def test_options_of_another_kind_are_refused_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        TokenizerSpec(kind="bytes", vocab_size=300, sample_bytes=1, eod_token="x")
    assert caught.value.problems == [
        "--vocab-size is for --tokenizer bpe alone",
        "--sample-bytes is for --tokenizer bpe alone",
        "--eod-token is for a tokenizer file alone",
    ]
    with pytest.raises(ConfigError, match=r"--vocab-size is 256; a BPE needs at least 257"):
        TokenizerSpec(kind="bpe", vocab_size=256)
    with pytest.raises(ConfigError, match=r"--sample-bytes is 0; expected at least 1"):
        TokenizerSpec(kind="bpe", sample_bytes=0)


def test_identity_tells_specs_apart() -> None:
    specs = [
        TokenizerSpec(kind="bytes"),
        TokenizerSpec(kind="bpe"),
        TokenizerSpec(kind="bpe", vocab_size=300),
        TokenizerSpec(kind="bpe", sample_bytes=300),
        TokenizerSpec(kind="file", file=b"a"),
        TokenizerSpec(kind="file", file=b"b"),
        TokenizerSpec(kind="file", file=b"a", eod_token="x"),
    ]
    assert len({spec.identity() for spec in specs}) == len(specs)
    assert TokenizerSpec(kind="bpe", vocab_size=8192).identity() == specs[1].identity()
