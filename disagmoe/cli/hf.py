"""`disagmoe hf`: Transformers models in and out, and the proof that both ways are exact."""

import json
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from disagmoe.config.load import load_run_config
from disagmoe.units import format_bytes, format_count

if TYPE_CHECKING:
    from disagmoe.hf.tensors import Fusion
    from disagmoe.hf.verify import Checked

app = typer.Typer(help="Transformers models in and out.", no_args_is_help=True)
FAILED = 1
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


class Dtype(StrEnum):
    """Types of exported weights."""

    BF16 = "bf16"
    FP32 = "fp32"


class Experts(StrEnum):
    """How experts lie in files."""

    PER_EXPERT = "per-expert"
    FUSED = "fused"


@app.command("import")
def import_(
    model: Annotated[Path, typer.Option(help="Folder with config.json and safetensors.")],
    out: Annotated[str, typer.Option(help="Folder or URI for the checkpoint, which is step 0.")],
    config: Annotated[
        Path | None, typer.Option(help="Run config that training will begin with.")
    ] = None,
    without_mtp: Annotated[
        bool, typer.Option(help="Leave layers of multi-token prediction out.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a Transformers model as a checkpoint that a run begins with.

    `train --config RUN.toml --resume OUT` then trains on from it; OUT/model.toml is its model file.
    """
    from disagmoe.hf.importing import import_model

    run = None if config is None else load_run_config(config, ())
    done = import_model(model, out, config=run, without_mtp=without_mtp)
    for notice in done.notices:
        print(notice, file=sys.stderr)
    if as_json:
        keys = ("place", "tensors", "parameters", "fusion", "notices")
        print(json.dumps({key: getattr(done, key) for key in keys} | {"family": done.model.family}))
        return
    print(
        f"{done.place}: {done.model.family}, {format_count(done.parameters)} parameters from "
        f"{done.tensors} tensors"
    )


@app.command()
def export(
    checkpoint: Annotated[
        str, typer.Option(help="Run directory or folder of checkpoints, D[@STEP].")
    ],
    out: Annotated[Path, typer.Option(help="New folder.")],
    like: Annotated[
        Path | None,
        typer.Option(help="Model whose config.json and tokenizer are carried over."),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights.")] = Dtype.BF16,
    experts: Annotated[
        Experts, typer.Option(help="One matrix per expert, or stacked by layer.")
    ] = Experts.PER_EXPERT,
    as_json: Json = False,
) -> None:
    """Write a checkpoint as a Transformers model: safetensors, config.json, tokenizer."""
    from disagmoe.hf.exporting import export_model

    fusion: Fusion = "fused" if experts is Experts.FUSED else "per_expert"
    done = export_model(checkpoint, out, like=like, dtype=dtype.value, fusion=fusion)
    if as_json:
        keys = ("out", "tensors", "size_bytes", "carried")
        print(json.dumps({key: getattr(done, key) for key in keys} | {"family": done.model.family}))
        return
    print(f"{done.out}: {done.tensors} tensors, {format_bytes(done.size_bytes)}")
    if not done.carried:
        print("without tokenizer; --like MODEL carries one over", file=sys.stderr)


@app.command()
def verify(
    model: Annotated[
        Path | None, typer.Option(help="Model to check, instead of tiny random ones.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Import, compare logits with Transformers, export, and load the result again.

    Without a model: tiny random models of every family, made on the spot.
    """
    from disagmoe.hf.verify import verify_model, verify_tiny

    if model is None:
        checked = verify_tiny(_report)
    else:
        with tempfile.TemporaryDirectory() as folder:
            checked = [verify_model(str(model), model, Path(folder))]
        _report(checked[0])
    ok = all(one.ok for one in checked)
    if as_json:
        families = list(dict.fromkeys(one.name.partition("/")[0] for one in checked))
        worst = max(one.logit_difference for one in checked)
        shown = families if model is None else [str(model)]
        print(json.dumps({"families": shown, "worst_logit_difference": worst, "ok": ok}))
    if not ok:
        raise typer.Exit(FAILED)


def _report(checked: "Checked") -> None:
    verdict = "ok" if checked.ok else checked.problem or "off"
    print(f"{checked.name:<16} {checked.logit_difference:8.1e}  {verdict}", file=sys.stderr)
