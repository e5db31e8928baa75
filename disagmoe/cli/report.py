"""`disagmoe report`: a run as one HTML file."""

import time
from pathlib import Path
from typing import Annotated

import typer

REPORT_FILE = "report.html"


def report(
    run_dir: Annotated[Path, typer.Argument(help="Directory of a run.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The file [default: RUN_DIR/report.html].")
    ] = None,
) -> None:
    """Write one self-contained HTML file about a run: loss, time, a step's timeline, experts.

    Works while the run goes on; it needs no network and no server.
    """
    # torch takes seconds to load, which `disagmoe --help` should not pay
    from disagmoe.report.page import report_html
    from disagmoe.report.rundata import read_run

    text = report_html(read_run(run_dir), time.localtime())
    path = out or run_dir / REPORT_FILE
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    typer.echo(path)
