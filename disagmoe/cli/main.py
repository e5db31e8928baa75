"""The command `disagmoe`: its sub-commands, and errors as one message and an exit code."""

import os
import sys
from typing import Annotated

import typer

from disagmoe import __version__
from disagmoe.cli import bench, checkpoint, config, dashboards, data, hf, schedule
from disagmoe.cli.calibrate import calibrate
from disagmoe.cli.doctor import doctor
from disagmoe.cli.evaluate import evaluate
from disagmoe.cli.inquiry import status, stop
from disagmoe.cli.invariance import invariance
from disagmoe.cli.plan import plan
from disagmoe.cli.report import report
from disagmoe.cli.reproduce import reproduce
from disagmoe.cli.simulate import simulate
from disagmoe.cli.train import train
from disagmoe.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DisagMoEError,
    PlacementError,
    StorageError,
)

FAILED, BAD_USAGE, NOT_PLACED = 1, 2, 3

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Train mixture-of-experts models with attention and experts on disjoint workers.",
)
app.add_typer(bench.app, name="bench")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(config.app, name="config")
app.add_typer(dashboards.app, name="dashboards")
app.add_typer(data.app, name="data")
app.add_typer(hf.app, name="hf")
app.add_typer(schedule.app, name="schedule")
app.command()(calibrate)
app.command()(doctor)
app.command()(evaluate)
app.command()(invariance)
app.command()(plan)
app.command()(report)
app.command()(reproduce)
app.command()(simulate)
app.command()(status)
app.command()(stop)
app.command()(train)


def main() -> None:
    """Run the command line; a DisagMoEError becomes its message on stderr and an exit code.

    With DISAGMOE_TRACEBACK=1 in the environment the traceback is shown as well.
    """
    try:
        app(prog_name="disagmoe")
    except DisagMoEError as error:
        if os.environ.get("DISAGMOE_TRACEBACK") == "1":
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(exit_code(error))


def exit_code(error: DisagMoEError) -> int:
    """Return the exit code of `error`: 2 bad config or input, 3 cannot be placed, else 1."""
    match error:
        case ConfigError() | DataError() | CheckpointError() | StorageError():
            return BAD_USAGE
        case PlacementError():
            return NOT_PLACED
        case _:
            return FAILED


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"disagmoe {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass
