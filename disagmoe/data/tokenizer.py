"""Tokenizers: a given `tokenizer.json`, a byte-level BPE trained on the input, or plain bytes.

All three are saved as a Hugging Face `tokenizer.json`. Text that looks like a special token is
encoded as ordinary text, so that only document ends carry the end-of-document id.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from disagmoe.data.manifest import TokenizerEntry, TokenizerKind
from disagmoe.errors import ConfigError, DataError
from disagmoe.units import MIB

EOD_TOKEN = "<|endoftext|>"
# Ends of documents in public tokenizers: GPT-2, OLMo, Qwen and GPT-OSS; Llama 3; DeepSeek (with
# fullwidth bars and a low line); Llama 2 and Mixtral; Gemma.
COMMON_EOD_TOKENS = (
    EOD_TOKEN,
    "<|end_of_text|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "</s>",
    "<eos>",
)
MIN_BPE_VOCAB_SIZE = 257
DEFAULT_VOCAB_SIZE = 8192
DEFAULT_SAMPLE_BYTES = 64 * MIB

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class DocumentTokenizer:
    """A tokenizer with its end-of-document token and its saved form."""

    entry: TokenizerEntry
    json: bytes
    """Content of `tokenizer.json`."""
    _tokenizer: Tokenizer

    @classmethod
    def load(
        cls, json: bytes, *, kind: TokenizerKind, eod_token: str | None
    ) -> "DocumentTokenizer":
        """Read the content of a `tokenizer.json`.

        Raises DataError for content that is no tokenizer, or without an end-of-document token.
        """
        try:
            tokenizer = Tokenizer.from_str(json.decode())
        except Exception as error:
            raise DataError(f"not a tokenizer.json that tokenizers reads: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        eod = _find_eod(tokenizer, vocab, eod_token)
        entry = TokenizerEntry(
            kind=kind,
            sha256=hashlib.sha256(json).hexdigest(),
            vocab_size=max(vocab.values()) + 1,
            eod_token=eod,
            eod_id=vocab[eod],
        )
        return cls(entry, json, tokenizer)

    @property
    def dtype(self) -> type[np.uint16] | type[np.uint32]:
        """Smallest type that holds every token id."""
        return np.uint16 if self.entry.vocab_size <= 2**16 else np.uint32

    def encode(self, texts: list[str]) -> list[Tokens]:
        """Tokens of each text, followed by the end-of-document token."""
        eod = np.array([self.entry.eod_id], dtype=self.dtype)
        if self.entry.kind == "bytes":
            encoded = [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
            return [np.concatenate([ids.astype(self.dtype), eod]) for ids in encoded]
        batch = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.concatenate([np.array(one.ids, dtype=self.dtype), eod]) for one in batch]

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of `tokens`, without special tokens."""
        return self._tokenizer.decode([int(token) for token in tokens], skip_special_tokens=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSpec:
    """The tokenizer that the user asked for; raises ConfigError for parameters of another kind."""

    kind: TokenizerKind
    file: bytes = b""
    """Content of the given `tokenizer.json`; only for `file`."""
    vocab_size: int | None = None
    """Number of tokens to train, by default 8192; only for `bpe`."""
    sample_bytes: int | None = None
    """Most text to train on, by default 64 MiB; only for `bpe`."""
    eod_token: str | None = None
    """End-of-document token; only for `file`."""

    def __post_init__(self) -> None:
        problems = []
        if self.kind == "bpe" and self.trained_vocab_size < MIN_BPE_VOCAB_SIZE:
            problems.append(
                f"--vocab-size is {self.vocab_size}; a BPE needs at least {MIN_BPE_VOCAB_SIZE} "
                "(256 bytes and the end of a document)"
            )
        if self.sample_bytes is not None and self.sample_bytes < 1:
            problems.append(f"--sample-bytes is {self.sample_bytes}; expected at least 1")
        if self.kind != "bpe" and self.vocab_size is not None:
            problems.append("--vocab-size is for --tokenizer bpe alone")
        if self.kind != "bpe" and self.sample_bytes is not None:
            problems.append("--sample-bytes is for --tokenizer bpe alone")
        if self.kind != "file" and self.eod_token is not None:
            problems.append("--eod-token is for a tokenizer file alone")
        if problems:
            raise ConfigError(problems)

    @property
    def trained_vocab_size(self) -> int:
        """Number of tokens to train."""
        return DEFAULT_VOCAB_SIZE if self.vocab_size is None else self.vocab_size

    @property
    def training_bytes(self) -> int:
        """Most text to train a BPE on."""
        return self.sample_bytes or DEFAULT_SAMPLE_BYTES

    def identity(self) -> str:
        """Text that is equal for specs that give the same tokenizer on the same input."""
        match self.kind:
            case "bytes":
                return "bytes"
            case "bpe":
                return (
                    f"bpe vocab_size={self.trained_vocab_size} sample_bytes={self.training_bytes}"
                )
            case "file":
                digest = hashlib.sha256(self.file).hexdigest()
                return f"file sha256={digest} eod_token={self.eod_token}"

    def build(self, sample: Iterable[str]) -> "DocumentTokenizer":
        """Make the tokenizer; a BPE is trained on `sample`."""
        match self.kind:
            case "bytes":
                return bytes_tokenizer()
            case "bpe":
                return train_bpe(sample, self.trained_vocab_size)
            case "file":
                return DocumentTokenizer.load(self.file, kind="file", eod_token=self.eod_token)


def _find_eod(tokenizer: Tokenizer, vocab: dict[str, int], wanted: str | None) -> str:
    candidates = (wanted,) if wanted is not None else COMMON_EOD_TOKENS
    for token in candidates:
        if token in vocab:
            return token
    added = tokenizer.get_added_tokens_decoder().values()
    special = ", ".join(sorted(token.content for token in added if token.special)) or "none"
    problem = (
        f"the tokenizer has no token {wanted!r}"
        if wanted is not None
        else f"the tokenizer has none of the usual end-of-document tokens {COMMON_EOD_TOKENS}"
    )
    raise DataError(f"{problem}; name one with --eod-token (its special tokens: {special})")


def _byte_level(vocab: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def bytes_tokenizer() -> DocumentTokenizer:
    """256 bytes, each its own id, and the end of a document as id 256."""
    tokenizer = _byte_level({symbol: byte for byte, symbol in enumerate(_byte_symbols())})
    tokenizer.add_special_tokens([AddedToken(EOD_TOKEN, special=True)])
    return DocumentTokenizer.load(_saved(tokenizer), kind="bytes", eod_token=EOD_TOKEN)


def train_bpe(texts: Iterable[str], vocab_size: int) -> DocumentTokenizer:
    """Train a byte-level BPE. Text that repeats too little gives fewer than `vocab_size` tokens.

    The result depends on the texts alone: ties between merges are broken by token id.
    """
    tokenizer = _byte_level({})
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(EOD_TOKEN, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return DocumentTokenizer.load(_saved(tokenizer), kind="bpe", eod_token=EOD_TOKEN)


def _saved(tokenizer: Tokenizer) -> bytes:
    return tokenizer.to_str(pretty=True).encode()


def _byte_symbols() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary.

    The table of GPT-2 (openai/gpt-2, src/encoder.py, bytes_to_unicode): printable Latin-1 stands
    for itself, the other bytes are numbered from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    shifted = {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [shifted.get(byte, chr(byte)) for byte in range(256)]
