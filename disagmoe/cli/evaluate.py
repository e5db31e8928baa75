"""`disagmoe evaluate`: the loss of a checkpoint on prepared data."""

import json
import sys
from enum import StrEnum
from typing import Annotated

import typer


class Precision(StrEnum):
    """Types of weights and activations."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP64 = "fp64"


def evaluate(
    checkpoint: Annotated[str, typer.Option(help="D[@STEP]: a run, or checkpoints.")],
    data: Annotated[str, typer.Option(help="Directory of `disagmoe data prepare`.")],
    sequences: Annotated[int, typer.Option(min=0, help="First sequences to use; 0 is all.")] = 0,
    sequence_length: Annotated[
        int, typer.Option(min=0, help="Targets per sequence; 0 is as in training.")
    ] = 0,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Sequences at a time; does not change the result.")
    ] = 1,
    precision: Annotated[
        Precision, typer.Option(help="Type of weights and activations.")
    ] = Precision.FP32,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the loss of a checkpoint, as cross-entropy per token, and the perplexity.

    One process holds the whole model; to evaluate while training, see `train.eval`.
    """
    from disagmoe.api.evaluate import evaluate as run

    found = run(
        checkpoint,
        data,
        sequences=sequences,
        sequence_length=sequence_length,
        batch_size=batch_size,
        precision=precision.value,
        report=_progress,
    )
    if as_json:
        print(json.dumps(found.as_json()))
        return
    print(
        f"{found.checkpoint} on {found.data}: loss {found.loss:.6f}, perplexity "
        f"{found.perplexity:.4f}, {found.targets} targets in {found.sequences} sequences"
    )


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {of} sequences", end="\n" if done == of else "", file=sys.stderr)
