"""`disagmoe schedule`: look at the programs of a run and prove them, without running anything."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from disagmoe.config.load import load_run_config
from disagmoe.errors import ConfigError, ScheduleError
from disagmoe.schedule.compile import Compiled
from disagmoe.schedule.from_config import ProgramRequest, programs_for
from disagmoe.schedule.ir import ProgramSet
from disagmoe.schedule.layout import Group
from disagmoe.schedule.render import LEGEND, bubble, draw, summarize
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
    config: Annotated[Path, typer.Option("--config", help="TOML file of the run.")],
    sets: Sets = None,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="A0", help="Print the program of this group instead."),
    ] = None,
    evaluation: Eval = False,
    as_json: Json = False,
    width: Annotated[int, typer.Option("--width", help="Columns of the timeline.")] = 100,
    start: Annotated[float, typer.Option("--from", help="Draw from this time on.")] = 0.0,
    end: Annotated[float | None, typer.Option("--to", help="Draw up to this time.")] = None,
) -> None:
    """Draw who computes what and when, in units of the op costs (by default a forward is 1)."""
    request = programs_for(load_run_config(config, sets or ()), training=not evaluation)
    try:
        compiled = request.compile()
        if group is not None:
            program = compiled.programs.of(Group.parse(group))
            text = write_program(program, request.spec)
            typer.echo(json.dumps({"group": group, "program": text}) if as_json else text, nl=False)
        elif as_json:
            typer.echo(json.dumps(_as_json(request, compiled)))
        else:
            grid = draw(
                compiled.timeline, request.spec.layout.all_groups, width=width, start=start, end=end
            )
            typer.echo(f"{_headline(request, compiled)}\n\n{grid}\n{LEGEND}\n\n{_table(compiled)}")
    except ScheduleError as error:
        raise ConfigError(str(error)) from None


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


def _headline(request: ProgramRequest, compiled: Compiled) -> str:
    spec, layout = request.spec, request.spec.layout
    return (
        f"{request.schedule}, {'training' if spec.training else 'evaluation'}: "
        f"{layout.layers} layers on {layout.groups} x ({layout.attention_workers} attention + "
        f"{layout.expert_workers} expert) workers, {spec.micro_batches} micro-batches, "
        f"{request.in_flight} in flight\n"
        f"makespan {compiled.timeline.makespan:g}, bubble {100 * bubble(compiled):.1f} %\n"
        f"lower bound {compiled.bound.time:g} ({compiled.bound.name}), "
        f"gap {100 * max(0.0, compiled.gap - 1):.1f} %"
    )


def _table(compiled: Compiled) -> str:
    lines = ["group   busy  peak slots  instructions"]
    lines += [
        f"{row.group!s:<5} {100 * row.busy_share:4.0f} %  {row.peak_slots:10d}  "
        f"{row.instructions:12d}"
        for row in summarize(compiled)
    ]
    return "\n".join(lines)


def _as_json(request: ProgramRequest, compiled: Compiled) -> dict[str, Any]:
    return {
        "schedule": request.schedule,
        "training": request.spec.training,
        "micro_batches": request.spec.micro_batches,
        "in_flight": request.in_flight,
        "makespan": compiled.timeline.makespan,
        "bubble": bubble(compiled),
        "lower_bound": compiled.bound.time,
        "bound": compiled.bound.name,
        "gap": compiled.gap,
        "groups": [
            {
                "group": str(row.group),
                "busy_share": row.busy_share,
                "peak_slots": row.peak_slots,
                "instructions": row.instructions,
            }
            for row in summarize(compiled)
        ],
        "spans": [
            {
                "group": str(span.group),
                "op": str(span.compute.op),
                "layer": span.compute.layer,
                "micro_batch": span.compute.mb,
                "start": span.start,
                "end": span.end,
            }
            for span in compiled.timeline.spans
        ],
    }
