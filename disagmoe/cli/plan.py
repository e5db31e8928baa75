"""`disagmoe plan`: how to divide a model over machines, without them."""

import json
from pathlib import Path
from typing import Annotated

import typer

from disagmoe.config.load import load_run_config
from disagmoe.config.tomlwrite import dump_toml
from disagmoe.errors import ConfigError, ScheduleError


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
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Divide as many workers as the config has into groups, sides, rings and micro-batches, for the
    most tokens/s that fit into memory; split and colocated layouts on the same costs. Says which
    roof binds and what the runners-up are."""
    from disagmoe.planner.explain import as_json, as_text
    from disagmoe.planner.search import search

    run = load_run_config(config, sets or ())
    try:
        found = search(run)
    except ScheduleError as error:
        raise ConfigError(str(error)) from None
    text = json.dumps(as_json(found))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "plan.json").write_text(text + "\n", encoding="utf-8")
        (out / "run.toml").write_text(dump_toml(found.best.config), encoding="utf-8")
    typer.echo(text if json_ else as_text(found))
