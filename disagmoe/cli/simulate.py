"""`disagmoe simulate`: what a step takes on given machines, without them."""

import json
from pathlib import Path
from typing import Annotated

import typer

from disagmoe.config.load import load_run_config
from disagmoe.config.run import RunConfig
from disagmoe.errors import ConfigError, ScheduleError

_DRAWN = 0.1
"""Share of the step that the second picture shows: single ops are visible in it."""


def simulate(
    config: Annotated[Path, typer.Option("--config", help="TOML file of a run.")],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for simulation.json, timeline.png, timeline_begin.png, and trace.json.gz "
            "for Perfetto.",
        ),
    ] = None,
    ignore_memory: Annotated[
        bool, typer.Option("--ignore-memory", help="Simulate what cannot fit into memory, too.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate a step: its time and lower bound, tokens/s, MFU, what every group does with its
    time, the critical path, and memory. Machines and network are those of section `hardware`. A run
    that cannot fit into memory is refused, with the cheapest change that does."""
    from disagmoe.planner.auto import divided
    from disagmoe.planner.room import check_room, room_of_machines
    from disagmoe.schedule.drawing import save
    from disagmoe.simulator.chart import chart_of
    from disagmoe.simulator.perfetto import write_trace
    from disagmoe.simulator.report import as_json, as_text
    from disagmoe.simulator.simulate import simulate as simulate_config

    try:
        run = divided(load_run_config(config, sets or ()))
        if not ignore_memory:
            check_room(run, room_of_machines(run))
        result = simulate_config(run)
    except ScheduleError as error:
        raise ConfigError(str(error)) from None
    found = json.dumps(as_json(result))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "simulation.json").write_text(found + "\n", encoding="utf-8")
        chart = chart_of(result, _headline(run))
        write_trace(chart, out / "trace.json.gz")
        save(chart, out / "timeline.png", start=0.0, end=None)
        save(chart, out / "timeline_begin.png", start=0.0, end=_DRAWN * result.makespan_s)
    typer.echo(found if json_ else f"{_headline(run)}\n{as_text(result)}")


def _headline(run: RunConfig) -> str:
    parallel, asked = run.parallel, run.hardware
    other = "" if asked.expert_machine == "same" else f" and {asked.expert_machine}"
    return (
        f"{run.name}: {parallel.summary} of {asked.attention_machine}{other}, "
        f"{parallel.schedule}, {run.micro_batches} micro-batches of "
        f"{parallel.micro_batch_size} x {run.train.sequence_length} tokens per ring"
    )
