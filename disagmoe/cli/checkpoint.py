"""`disagmoe checkpoint`: what is saved, and whether it is whole."""

import json
from datetime import UTC, datetime
from typing import Annotated

import typer

FAILED = 1

app = typer.Typer(no_args_is_help=True, help="Look at saved states of training.")


@app.callback()
def _options() -> None:
    """Look at saved states of training."""


@app.command()
def show(
    place: Annotated[
        str,
        typer.Argument(
            metavar="D[@STEP]",
            help="Run directory, folder or URI of checkpoints, or one of them.",
        ),
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte and compare it with its hash.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show steps, layout, files, bytes, parameters, age and checks; of a single one also what each
    group and worker has written.

    Sizes of files are always checked, their content with --verify. Exit codes: 0 nothing wrong was
    found, 1 something was, 2 there is no checkpoint.
    """
    # pyarrow takes long to import, which other commands should not pay
    from disagmoe.checkpoint.find import complete_in
    from disagmoe.checkpoint.report import examine
    from disagmoe.cli.saved import lines

    folder, steps = complete_in(place)
    now = datetime.now(UTC)
    report = examine(folder.place, steps, read=verify)
    if as_json:
        typer.echo(json.dumps(report.as_json(now)))
    else:
        for line in lines(report, now):
            typer.echo(line)
    if not report.ok:
        raise typer.Exit(FAILED)
