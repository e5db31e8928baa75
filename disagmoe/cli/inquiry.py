"""`disagmoe status` and `disagmoe stop`: a run under way, from another shell."""

import json
from pathlib import Path
from typing import Annotated

import typer

RunDirectory = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Directory of the run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def status(
    run_dir: RunDirectory,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="With the stacks of all threads of each worker.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say where each worker of a run is, whom it waits for, and who keeps the others waiting.

    For a run that has ended, its result. Exits with 1 where the run was killed or does not answer.
    """
    # Ray takes a second to load
    from disagmoe.api.inquiry import ask_status
    from disagmoe.api.result import Result
    from disagmoe.cli.progress import summary

    found = ask_status(run_dir, stacks=stacks)
    if isinstance(found, Result):
        ended = {"status": found.status, "result": json.loads(found.to_json())}
        typer.echo(json.dumps(ended) if as_json else "\n".join(summary(found)))
    elif as_json:
        typer.echo(json.dumps({"status": "running", **found.to_dict()}))
    else:
        typer.echo("\n".join(found.lines()))


def stop(
    run_dir: RunDirectory,
    within_s: Annotated[
        float, typer.Option("--within", metavar="SECONDS", help="How long to wait for the end.")
    ] = 600.0,
    as_json: AsJson = False,
) -> None:
    """Let a run end after the step under way, with a checkpoint where the config asks for one."""
    from disagmoe.api.inquiry import ask_stop
    from disagmoe.cli.progress import summary

    result = ask_stop(run_dir, within_s)
    typer.echo(result.to_json() if as_json else "\n".join(summary(result)))
