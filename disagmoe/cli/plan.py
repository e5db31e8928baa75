"""`disagmoe plan`: how to divide a model over machines, without them."""

import json
import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from disagmoe.config.hardware import MACHINE_FILE
from disagmoe.config.load import load_run_config, override
from disagmoe.config.tomlwrite import dump_toml, format_value
from disagmoe.errors import ConfigError, ScheduleError

RUN_CONFIG = "config.toml"
"""Of a run directory."""


def plan(
    config: Annotated[
        Path,
        typer.Option(
            "--config", help="TOML file of a run, as in configs/clusters: how many workers."
        ),
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for plan.json and run.toml, the choice.")
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(
            "--costs",
            metavar="RUN_DIR",
            help="Take ops and transfers to be as slow as this run has measured.",
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", min=0, help="Processes; 0 takes one per core.")
    ] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Divide as many workers as the config has into groups, sides, rings and micro-batches, for the
    most tokens/s that fit into memory; split and colocated layouts on the same costs. Says which
    roof binds and what the runners-up are."""
    from disagmoe.planner.explain import as_json, as_text
    from disagmoe.planner.search import search

    run = load_run_config(config, sets or ())
    with ExitStack() as stack:
        if costs is not None:
            folder = out or Path(stack.enter_context(TemporaryDirectory()))
            run = override(run, _machines(costs, folder))
        try:
            found = search(run, jobs=jobs or os.cpu_count() or 1)
        except ScheduleError as error:
            raise ConfigError(str(error)) from None
    text = json.dumps(as_json(found))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "plan.json").write_text(text + "\n", encoding="utf-8")
        (out / "run.toml").write_text(dump_toml(found.best.config), encoding="utf-8")
    typer.echo(text if json_ else as_text(found))


def _machines(run_dir: Path, folder: Path) -> list[str]:
    """Write the machines of the run in `run_dir` to `folder`; return what makes a config of them.

    Raises:
        ConfigError: there is no such run, or it has measured nothing.
    """
    from disagmoe.costs.from_run import machines_of
    from disagmoe.costs.measured import write_machine

    folder.mkdir(parents=True, exist_ok=True)
    measured = machines_of(load_run_config(run_dir / RUN_CONFIG))
    settings = ["hardware.calibration=usual"]
    for side, machine in zip(("attention", "expert"), measured, strict=True):
        file = folder / f"{side}-machine{MACHINE_FILE}"
        write_machine(file, machine)
        settings.append(f"hardware.{side}_machine={format_value(str(file))}")
    if measured[0] == measured[1]:
        settings.append("hardware.expert_machine=same")
    return settings
