"""`disagmoe train`: a run from a config file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from disagmoe.cli.results import stdout_for_results
from disagmoe.cluster.signals import TERMINATED, sigterm_raises
from disagmoe.config.load import load_run_config, override
from disagmoe.config.rules import warnings
from disagmoe.config.run import RunConfig
from disagmoe.config.tomlwrite import format_value

INTERRUPTED = 130


def train(
    config: Annotated[
        Path | None,
        typer.Option("--config", help="TOML file of the run; by default the checkpoint's."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated."),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            help="New or empty directory, or that of the run to resume; runs/NAME-DATE-TIME if not "
            "given.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="D[@STEP]|auto",
            help="Go on from the checkpoint after STEP steps, or the last complete one, of the run "
            "directory or folder of checkpoints D; `auto`: from the last one of --run-dir or "
            "checkpoint.folder, or from the beginning where there is none.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", metavar="auto|local|HOST:PORT", help="Ray to use; sets cluster.address."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
) -> None:
    """Train on this machine or on a cluster; each worker is a process of its own.

    Uses the Ray that `--address`, `cluster.address` or RAY_ADDRESS name, else starts one of its own
    on this machine. A run that has ended, was killed or has failed goes on with `--resume RUN_DIR`.

    Exit codes: 0 all steps are done, 1 the run failed, 2 the config or the data cannot be used,
    3 the workers have no place, 130 stopped by Ctrl-C, 143 by SIGTERM or `disagmoe stop`.
    """
    named = [] if address is None else [f"cluster.address={format_value(address)}"]
    with sigterm_raises(), _ctrl_c_exits():
        loaded = _load(config, [*(sets or []), *named], resume)
        for warning in warnings(loaded):
            typer.echo(f"warning: {warning}", err=True)
        _fit(loaded, run_dir, resume, as_json)


def _load(config: Path | None, sets: list[str], resume: str | None) -> RunConfig:
    if config is not None:
        return load_run_config(config, sets)
    if resume is None:
        raise typer.BadParameter("give --config FILE, or --resume D to go on with a checkpoint's")
    # loads torch and Ray
    from disagmoe.api import saved_config

    return override(saved_config(resume), sets)


def _fit(config: RunConfig, run_dir: Path | None, resume: str | None, as_json: bool) -> None:
    # torch and Ray take seconds to load; a config that cannot run has been refused before
    from disagmoe.api import Callback, Result, Trainer
    from disagmoe.cli.progress import ShowProgress, stderr_console

    class PrintJson(Callback):
        def on_end(self, result: Result) -> None:
            typer.echo(result.to_json(), file=stdout)

    callbacks: list[Callback] = [ShowProgress(stderr_console())]
    if as_json:
        callbacks.append(PrintJson())
    with stdout_for_results() as stdout:
        result = Trainer(config, run_dir=run_dir, resume=resume, callbacks=callbacks).fit()
    if result.status == "stopped":  # by `disagmoe stop`; signals end this process themselves
        raise typer.Exit(TERMINATED)


@contextmanager
def _ctrl_c_exits() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
