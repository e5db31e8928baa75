"""`disagmoe evaluate`: the loss of a checkpoint on prepared data."""

import json
import sys
from enum import StrEnum
from typing import Annotated

import typer

from disagmoe.units import GIB


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
    memory_gib: Annotated[
        float,
        typer.Option(min=0, help="GiB for weights and hidden states; 0 is 3/4 of what is free."),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the loss of a checkpoint, as cross-entropy per token, and the perplexity.

    In one process, which reads layer by layer what does not fit into its memory. To evaluate with
    the workers of a run, see `train.eval`.
    """
    from disagmoe.api.evaluate import evaluate as run

    found = run(
        checkpoint,
        data,
        sequences=sequences,
        sequence_length=sequence_length,
        batch_size=batch_size,
        precision=precision.value,
        memory_bytes=int(memory_gib * GIB),
        report=_progress,
    )
    if as_json:
        print(json.dumps(found.as_json()))
        return
    print(
        f"{found.checkpoint} on {found.data}: loss {found.loss:.6f}, perplexity "
        f"{found.perplexity:.4f}, {found.targets} targets in {found.sequences} sequences"
    )


def _progress(share: float) -> None:
    if sys.stderr.isatty():
        print(f"\r{share:.0%}", end="\n" if share == 1 else "", file=sys.stderr)
