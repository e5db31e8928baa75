"""`disagmoe schedule`: look at the programs of a run and prove them, without running anything."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from disagmoe.cli.timeline import (
    measured,
    measured_json,
    measured_table,
    planned,
    planned_json,
    planned_table,
)
from disagmoe.config.load import load_run_config
from disagmoe.errors import ConfigError, ScheduleError
from disagmoe.schedule.bars import Chart
from disagmoe.schedule.drawing import check_suffix, save
from disagmoe.schedule.from_config import ProgramRequest, programs_for
from disagmoe.schedule.ir import ProgramSet
from disagmoe.schedule.layout import Group
from disagmoe.schedule.render import LEGEND, STEP_LEGEND, draw
from disagmoe.schedule.text import read_program, read_programs, write_program
from disagmoe.schedule.verify import RULES, check

BAD_USAGE = 2

app = typer.Typer(no_args_is_help=True, help="Show and verify the programs that workers execute.")

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated."),
]
Eval = Annotated[bool, typer.Option("--eval", help="The programs of an evaluation.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def show(
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file of a run; its plan is shown.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="Directory of a run; what it measured is shown.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Draw into this file (.svg or .png) instead of the terminal."),
    ] = None,
    sets: Sets = None,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="A0", help="Print the program of this group instead."),
    ] = None,
    evaluation: Eval = False,
    step: Annotated[
        int | None,
        typer.Option("--step", help="Traced step of --run, from 0; by default the last one."),
    ] = None,
    as_json: Json = False,
    width: Annotated[int, typer.Option("--width", help="Columns of the timeline.")] = 100,
    start: Annotated[float, typer.Option("--from", help="Draw from this time on.")] = 0.0,
    end: Annotated[float | None, typer.Option("--to", help="Draw up to this time.")] = None,
) -> None:
    """Draw who computes, waits and sends what and when: as planned, in units of the op costs (by
    default a forward is 1), or as measured in a traced step of a run, in seconds."""
    if (config is None) == (run is None):
        raise typer.BadParameter("give either --config (a plan) or --run (a measured run)")
    if run is not None and (sets or evaluation or group is not None):
        raise typer.BadParameter("--set, --eval and --group belong to --config")
    if config is not None and step is not None:
        raise typer.BadParameter("--step belongs to --run")
    if out is not None:
        if group is not None or as_json:
            raise typer.BadParameter("--out draws a picture; leave out --group and --json")
        check_suffix(out)
    part = _Part(width, start, end)
    try:
        if run is not None:
            _show_run(run, step, out, as_json, part)
        elif config is not None:
            request = programs_for(load_run_config(config, sets or ()), training=not evaluation)
            if group is not None:
                _show_program(request, group, as_json)
            else:
                _show_plan(request, out, as_json, part)
    except ScheduleError as error:
        raise ConfigError(str(error)) from None


@dataclass(frozen=True, slots=True)
class _Part:
    """What to draw of a timeline, and how wide in a terminal."""

    width: int
    start: float
    end: float | None

    def text(self, chart: Chart) -> str:
        """Title and rows."""
        title = "\n".join(chart.title)
        return f"{title}\n\n{draw(chart, width=self.width, start=self.start, end=self.end)}"


def _show_program(request: ProgramRequest, group: str, as_json: bool) -> None:
    program = request.compile().programs.of(Group.parse(group))
    text = write_program(program, request.spec)
    typer.echo(json.dumps({"group": group, "program": text}) if as_json else text, nl=False)


def _show_plan(request: ProgramRequest, out: Path | None, as_json: bool, part: _Part) -> None:
    compiled = request.compile()
    chart = planned(request, compiled)
    if out is not None:
        save(chart, out, start=part.start, end=part.end)
    elif as_json:
        typer.echo(json.dumps(planned_json(request, compiled, chart)))
    else:
        typer.echo(f"{part.text(chart)}\n{LEGEND}\n\n{planned_table(compiled, chart)}")


def _show_run(run: Path, step: int | None, out: Path | None, as_json: bool, part: _Part) -> None:
    chart = measured(run, step)
    if out is not None:
        save(chart, out, start=part.start, end=part.end)
    elif as_json:
        typer.echo(json.dumps(measured_json(chart)))
    else:
        typer.echo(f"{part.text(chart)}\n{LEGEND}\n{STEP_LEGEND}\n\n{measured_table(chart)}")


@app.command()
def verify(
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file of the run; its programs compile.")
    ] = None,
    programs: Annotated[
        Path | None, typer.Option("--programs", help="Folder with one .sched file per group.")
    ] = None,
    sets: Sets = None,
    evaluation: Eval = False,
    as_json: Json = False,
) -> None:
    """Check every rule that programs must keep; exit code 2 and the reason when one is broken."""
    source = _source(config, programs, sets or [], evaluation)
    passed: list[str] = []
    problem: str | None = None
    try:
        found = source()
        for rule in RULES:
            check(rule, found)
            passed.append(rule.__name__)
    except ScheduleError as error:
        problem = str(error)
    if as_json:
        typer.echo(json.dumps({"ok": problem is None, "passed": passed, "problem": problem}))
    else:
        for name in passed:
            typer.echo(f"ok    {name}")
        if problem is not None:
            typer.echo(f"error: {problem}", err=True)
    if problem is not None:
        raise typer.Exit(BAD_USAGE)


def _source(
    config: Path | None, programs: Path | None, sets: list[str], evaluation: bool
) -> Callable[[], ProgramSet]:
    """Where the programs to verify come from."""
    if config is not None and programs is None:
        request = programs_for(load_run_config(config, sets), training=not evaluation)
        return lambda: request.build().programs
    if config is not None or programs is None:
        raise typer.BadParameter("give either --config or --programs")
    if sets or evaluation:
        raise typer.BadParameter("--set and --eval belong to --config")
    folder = programs
    return lambda: _read(folder)


def _read(folder: Path) -> ProgramSet:
    """Read all `*.sched` of `folder`. Raises ScheduleError that names the file."""
    files = sorted(folder.glob("*.sched"))
    if not files:
        raise ScheduleError(f"{folder} holds no *.sched files")
    texts = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
            read_program(text)
        except (OSError, UnicodeDecodeError) as error:
            raise ScheduleError(f"{file}: cannot be read: {error}") from None
        except ScheduleError as error:
            raise ScheduleError(f"{file}: {error}") from None
        texts.append(text)
    return read_programs(texts)
