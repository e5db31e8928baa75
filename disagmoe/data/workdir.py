"""The working directory of a preparation, and how it becomes the output.

All work happens in `OUT.partial`, which takes the name OUT when it is complete: OUT is whole or
absent. On an object store, which cannot rename directories, files move one by one and the manifest
moves last. A finished shard is an Arrow file and a small JSON file that says what it holds; a
rerun of the same preparation keeps both.
"""

from disagmoe.config.base import Section
from disagmoe.data.manifest import (
    MANIFEST,
    TOKENIZER,
    BadRecord,
    Identity,
    ShardEntry,
)
from disagmoe.data.plan import Plan
from disagmoe.data.shard import shard_name
from disagmoe.errors import DataError, DisagMoEError
from disagmoe.storage import Location

PLAN = "plan.json"


class FinishedShard(Section):
    """Content of `shard-N.json`."""

    entry: ShardEntry
    """What the shard holds."""
    bad: list[BadRecord]
    """First bad records that were skipped."""


def working_directory(out: Location) -> Location:
    """Where the files of `out` stand until they are complete."""
    return out.sibling(".partial")


def check_output(out: Location) -> None:
    """Raises DataError when OUT is a file, or a directory of something else."""
    if out.is_file():
        raise DataError(f"--out {out}: is a file, expected a directory that does not exist yet")
    names = out.names()
    published = (working_directory(out) / MANIFEST).is_file()
    if names and MANIFEST not in names and not published:
        raise DataError(
            f"--out {out}: is not empty and holds no prepared data ({names[0]}, ...); choose a "
            "directory that does not exist yet"
        )


def check_same(place: Location, found: Identity, wanted: Identity) -> None:
    """Raises DataError that names what differs when `place` was made in another way."""
    if found == wanted:
        return
    fields = [name for name in Identity.model_fields if name != "sources"]
    differences = [
        f"{name} {getattr(found, name)} there, {getattr(wanted, name)} asked for"
        for name in fields
        if getattr(found, name) != getattr(wanted, name)
    ]
    if found.sources != wanted.sources:
        differences.append(_source_difference(found, wanted))
    listed = "; ".join(differences)
    raise DataError(
        f"{place}: was prepared differently ({listed}); delete it or choose another --out"
    )


def _source_difference(found: Identity, wanted: Identity) -> str:
    before = {source.path: source for source in found.sources}
    after = {source.path: source for source in wanted.sources}
    gone = [path for path in before if path not in after]
    new = [path for path in after if path not in before]
    changed = [path for path in after if path in before and before[path] != after[path]]
    kinds = (("changed", changed), ("new", new), ("missing", gone))
    parts = [f"{len(paths)} {kind} ({paths[0]})" for kind, paths in kinds if paths]
    return "input files: " + ", ".join(parts)


def enter(work: Location, plan: Plan) -> None:
    """Make the working directory, or check that it belongs to this plan."""
    if (work / PLAN).is_file():
        try:
            found = Identity.model_validate_json((work / PLAN).read_bytes())
        except ValueError as error:
            raise DataError(f"{work / PLAN}: is damaged; delete {work}") from error
        check_same(work, found, plan.identity)
        return
    if any(not name.startswith(PLAN) for name in work.names()):
        raise DataError(f"{work}: is in the way, and is no unfinished preparation; move it")
    work.make_directory()
    (work / PLAN).write_bytes(plan.identity.model_dump_json().encode())


def _note(work: Location, index: int) -> Location:
    return work / shard_name(index).replace(".arrow", ".json")


def write_note(work: Location, index: int, shard: FinishedShard) -> None:
    """Record that shard `index` is finished."""
    _note(work, index).write_bytes(shard.model_dump_json().encode())


def finished_shards(work: Location, plan: Plan) -> dict[int, FinishedShard]:
    """Shards of an earlier run whose file has the size that it should have."""
    finished = {}
    names = set(work.names())
    for index in range(len(plan.shards)):
        note = _note(work, index)
        if note.path.rpartition("/")[2] not in names:
            continue
        shard = FinishedShard.model_validate_json(note.read_bytes())
        if (work / shard.entry.name).info().size == shard.entry.size_bytes:
            finished[index] = shard
    return finished


def after_failure(work: Location, plan: Plan, error: DisagMoEError) -> DisagMoEError:
    """Delete a working directory that holds nothing worth keeping; say what is kept."""
    finished = len(finished_shards(work, plan))
    if finished in (0, len(plan.shards)):
        work.delete_directory()
        return error
    return DataError(
        f"{error}\n{finished} of {len(plan.shards)} shards are finished and kept in {work}; the "
        "same command goes on from there"
    )


def publish(work: Location, out: Location) -> None:
    """Give the complete working directory its final name."""
    for name in work.names():
        keep = name in (MANIFEST, TOKENIZER) or name.endswith(".arrow")
        if not keep:
            work.fs.delete_file((work / name).path)
    if work.is_local:
        out.delete_directory()  # empty, see check_output
        work.fs.move(work.path, out.path)
        return
    out.make_directory()
    for name in sorted(work.names(), key=lambda name: name == MANIFEST):
        work.fs.move((work / name).path, (out / name).path)
    work.delete_directory()
