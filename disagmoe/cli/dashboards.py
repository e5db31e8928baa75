"""`disagmoe dashboards`: the files of Grafana and Prometheus, their check, and pictures of both."""

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from disagmoe.dashboards.prometheus import Prometheus

FAILED = 1

app = typer.Typer(no_args_is_help=True, help="Dashboards for Grafana, rules for Prometheus.")
Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="The folder `dashboards` [default: below here, or installed]."),
]


@app.command()
def write(
    place: Folder = None,
    docs: Annotated[
        Path | None, typer.Option("--docs", help="Write the table of metrics to this file as well.")
    ] = None,
) -> None:
    """Write the dashboards of Grafana and the rules of Prometheus."""
    from disagmoe.dashboards.files import folder, generated
    from disagmoe.dashboards.files import write as write_files
    from disagmoe.metrics.catalogue import markdown

    target = folder(place)
    for name in write_files(target, generated()):
        typer.echo(target / name)
    if docs is not None:
        docs.write_text(markdown(), encoding="utf-8")


@app.command()
def check(
    place: Folder = None,
    live: Annotated[
        bool, typer.Option("--live", help="Evaluate every expression on a short run.")
    ] = False,
    pictures: Annotated[
        Path | None,
        typer.Option("--pictures", help="With --live: draw every panel into PNG files there."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check that the files are those that `write` writes, and that every metric is shown.

    With --live a Prometheus (Debian's package) and a short run are started, every expression of
    every panel and rule is evaluated, and values are compared with what the run has logged. Exits
    with 1 where something is wrong.
    """
    from disagmoe.dashboards.catalogue import expressions, unknown, unused
    from disagmoe.dashboards.files import folder, generated, stale

    errors = [
        f"{name} is stale; run `disagmoe dashboards write`"
        for name in stale(folder(place), generated())
    ]
    empty: tuple[str, ...] = ()
    count = len(expressions())
    if live:
        count, empty, found = _live(pictures)
        errors += found
    else:
        errors += [f"{name} is on no panel and in no rule" for name in unused()]
        errors += [f"{name} is no metric" for name in unknown()]
    for problem in [*(f"empty: {one}" for one in empty), *errors]:
        typer.echo(problem, err=True)
    counts = {"expressions": count, "empty": len(empty), "errors": len(errors)}
    typer.echo(json.dumps(counts) if as_json else ", ".join(f"{n} {k}" for k, n in counts.items()))
    if empty or errors:
        raise typer.Exit(FAILED)


def _live(pictures: Path | None) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    from disagmoe.cluster.signals import sigterm_raises
    from disagmoe.dashboards.live import check_live

    def picture(server: "Prometheus", start_s: float, end_s: float) -> None:
        if pictures is not None:
            _draw(server, pictures, ".*", "30s", start_s, end_s)

    with sigterm_raises(), tempfile.TemporaryDirectory(prefix="disagmoe-") as scratch:
        verdict = check_live(Path(scratch), lambda text: typer.echo(text, err=True), picture)
    return verdict.expressions, verdict.empty, verdict.errors


@app.command()
def preview(
    out: Annotated[Path, typer.Option("--out", help="Folder for the PNG files.")],
    url: Annotated[
        str, typer.Option("--prometheus", help="Where Prometheus answers.")
    ] = "http://localhost:9090",
    run: Annotated[str, typer.Option("--run", help="Regular expression of runs.")] = ".*",
    window: Annotated[str, typer.Option("--window", help="Means are over this time.")] = "5m",
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, help="Time shown.")] = 60.0,
) -> None:
    """Draw every dashboard from what a Prometheus has, without a Grafana."""
    from disagmoe.dashboards.prometheus import Prometheus

    end_s = time.time()
    _draw(Prometheus(url), out, run, window, end_s - 60 * minutes, end_s)


def _draw(
    server: "Prometheus", out: Path, run: str, window: str, start_s: float, end_s: float
) -> None:
    from disagmoe.dashboards.catalogue import DASHBOARDS
    from disagmoe.dashboards.preview import draw

    out.mkdir(parents=True, exist_ok=True)
    for board in DASHBOARDS:
        path = out / f"{board.uid}.png"
        draw(board, server, path, run=run, window=window, start_s=start_s, end_s=end_s)
        typer.echo(path, err=True)
