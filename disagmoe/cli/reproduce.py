"""`disagmoe reproduce`: the DisagMoE paper's comparison on our costs and simulator."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="NAME",
            help="fig5, fig6a, fig10 to fig14 or ablation; may be repeated. All by default.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for reproduction.json, reproduction.txt and pictures."),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", min=0, help="Processes; 0 takes one per core.")
    ] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate the experiments of arXiv:2605.11005 under three calibrations and compare with what
    the paper reports: ours, its value or range, in or out, and for what is out what would have to
    be true. Needs about ten minutes on two cores."""
    from disagmoe.reproduce.pictures import draw
    from disagmoe.reproduce.report import as_json, as_text
    from disagmoe.reproduce.run import NAMES
    from disagmoe.reproduce.run import reproduce as run

    found = run(only or NAMES, jobs=jobs or os.cpu_count() or 1)
    text, data = as_text(found.rows, found.effects), json.dumps(as_json(found.rows, found.effects))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "reproduction.json").write_text(data + "\n", encoding="utf-8")
        (out / "reproduction.txt").write_text(text + "\n", encoding="utf-8")
        draw(found, out)
    typer.echo(data if json_ else text)
