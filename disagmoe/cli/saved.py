"""What `disagmoe checkpoint show` says of a folder of checkpoints."""

from collections.abc import Iterator

from disagmoe.checkpoint.catalogue import names
from disagmoe.checkpoint.report import Examined, Report, layout, precision
from disagmoe.units import format_bytes, format_count

_HEADER = ("step", "layout", "type", "files", "bytes", "parameters", "saved", "check")


def lines(report: Report) -> Iterator[str]:
    """Say what is in a folder of checkpoints; the files too where there is one checkpoint."""
    yield str(report.folder)
    yield from _table([_HEADER, *(_row(one) for one in report.checkpoints)])
    for one in report.checkpoints:
        if len(report.checkpoints) == 1 and one.manifest is not None:
            rows = [(f.worker, f.name, format_bytes(f.size_bytes)) for f in one.manifest.files]
            yield from _table([("worker", "file", "bytes"), *rows])
        for problem in one.problems:
            yield f"step-{one.step}: {problem}"
    if report.incomplete:
        yield f"left by interrupted saves, and ignored: {names(report.incomplete)}"


def _row(one: Examined) -> tuple[str, ...]:
    good = "content ok" if one.read else "sizes ok"
    check = f"{len(one.problems)} problems" if one.problems else good
    manifest = one.manifest
    if manifest is None:
        return (str(one.step), *("?" for _ in _HEADER[1:-1]), check)
    return (
        str(one.step),
        layout(manifest),
        precision(manifest),
        str(len(manifest.files)),
        format_bytes(manifest.size_bytes),
        format_count(manifest.parameter_count),
        manifest.saved_at,
        check,
    )


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
