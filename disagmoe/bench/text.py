"""Text to train on: what every machine with Python has."""

import sysconfig
from pathlib import Path

from disagmoe.data.plan import PrepareOptions
from disagmoe.data.prepare import prepare
from disagmoe.data.tokenizer import TokenizerSpec

VOCABULARY = 257
"""Bytes and the end of a document: what a model must have at least."""


def prepare_text(folder: Path, *, bpe_vocab_size: int = 0) -> str:
    """Prepare the modules of the standard library in `folder`, a few million tokens; return the
    path that a run config takes. Tokens are bytes, or pairs of a vocabulary of the size asked for,
    trained on this text."""
    tokenizer = (
        TokenizerSpec(kind="bpe", vocab_size=bpe_vocab_size)
        if bpe_vocab_size
        else TokenizerSpec(kind="bytes")
    )
    out = folder / "text"
    prepare(
        PrepareOptions(
            inputs=[f"{sysconfig.get_paths()['stdlib']}/*.py"],
            out=str(out),
            excludes=[],
            tokenizer=tokenizer,
        ),
        lambda _: None,
    )
    return str(out)
