"""What `disagmoe checkpoint show` says of a folder of checkpoints."""

from collections.abc import Iterator
from datetime import datetime

from disagmoe.checkpoint.catalogue import SET_ASIDE, names
from disagmoe.checkpoint.manifest import MANIFEST, Manifest
from disagmoe.checkpoint.report import Examined, Report, age_s, groups, layout, precision
from disagmoe.units import format_bytes, format_count, format_seconds

_HEADER = ("step", "layout", "type", "files", "bytes", "parameters", "age", "check")


def lines(report: Report, now: datetime) -> Iterator[str]:
    """Say what is in a folder of checkpoints; where there is one, what each worker has written."""
    yield str(report.folder)
    yield from _table([_HEADER, *(_row(one, now) for one in report.checkpoints)])
    for one in report.checkpoints:
        if len(report.checkpoints) == 1 and one.manifest is not None:
            yield from _details(one.manifest)
        for problem in one.problems:
            yield f"step-{one.step}: {problem}"
    if report.incomplete:
        yield f"left by interrupted saves, and ignored: {names(report.incomplete)}"
    if report.set_aside:
        yield (
            f"set aside, as the run went on from an earlier step: {names(report.set_aside)} "
            f"(rename {SET_ASIDE} to {MANIFEST} to have one back)"
        )


def _row(one: Examined, now: datetime) -> tuple[str, ...]:
    good = "content ok" if one.read else "sizes ok"
    problems = "1 problem" if len(one.problems) == 1 else f"{len(one.problems)} problems"
    check = problems if one.problems else good
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
        format_seconds(age_s(manifest, now)),
        check,
    )


def _details(manifest: Manifest) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    yield f"saved {manifest.saved_at} by {versions}"
    done = manifest.done
    loss = "" if done.last_loss is None else f", loss {done.last_loss:.4f}"
    yield (
        f"{done.step} steps, {done.updates} updates, {format_count(done.tokens)} tokens{loss}; "
        f"programs {manifest.programs_sha256[:12]}"
    )
    rows = [
        (name, str(part.workers), format_count(part.parameters), format_bytes(part.bytes))
        for name, part in groups(manifest).items()
    ]
    yield from _table([("group", "workers", "parameters", "bytes"), *rows])
    files = [(file.worker, file.name, format_bytes(file.size_bytes)) for file in manifest.files]
    yield from _table([("worker", "file", "bytes"), *files])


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
