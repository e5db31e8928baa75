"""Text to train on: what every machine with Python has, as bytes."""

import sysconfig
from pathlib import Path

from disagmoe.data.plan import PrepareOptions
from disagmoe.data.prepare import prepare
from disagmoe.data.tokenizer import TokenizerSpec

VOCABULARY = 257
"""Bytes and the end of a document: what a model must have at least."""


def prepare_text(folder: Path) -> str:
    """Prepare the modules of the standard library in `folder`, a few million tokens; return the
    path that a run config takes."""
    out = folder / "text"
    prepare(
        PrepareOptions(
            inputs=[f"{sysconfig.get_paths()['stdlib']}/*.py"],
            out=str(out),
            excludes=[],
            tokenizer=TokenizerSpec(kind="bytes"),
        ),
        lambda _: None,
    )
    return str(out)
