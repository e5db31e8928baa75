"""What is in a folder of checkpoints, and whether it is what was written."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from disagmoe.checkpoint.catalogue import incomplete_steps, set_aside_steps, step_place
from disagmoe.checkpoint.check import content_problems, size_problems
from disagmoe.checkpoint.manifest import Manifest, read_manifest
from disagmoe.errors import CheckpointError
from disagmoe.schedule.layout import Worker
from disagmoe.storage import Location


@dataclass(frozen=True, slots=True)
class Examined:
    """One complete checkpoint."""

    step: int
    place: Location
    manifest: Manifest | None
    """None where it cannot be read."""
    problems: list[str]
    """What is wrong with it; [] where nothing has been found."""
    read: bool
    """Whether every byte has been compared, not only the sizes."""

    def as_json(self, now: datetime) -> dict[str, Any]:
        """One object, with what the manifest says; `now` is aware of its time zone."""
        known = {"step": self.step, "path": str(self.place)}
        check = {"checked": "content" if self.read else "sizes", "problems": self.problems}
        if self.manifest is None:
            return known | check
        manifest = self.manifest
        files = [
            {"name": file.name, "worker": file.worker, "bytes": file.size_bytes}
            for file in manifest.files
        ]
        return {
            **known,
            "saved_at": manifest.saved_at,
            "age_s": age_s(manifest, now),
            "layout": layout(manifest),
            "precision": precision(manifest),
            "updates": manifest.done.updates,
            "tokens": manifest.done.tokens,
            "loss": manifest.done.last_loss,
            "parameters": manifest.parameter_count,
            "tensors": len(manifest.parameters),
            "bytes": manifest.size_bytes,
            "files": files,
            "groups": {name: asdict(part) for name, part in groups(manifest).items()},
            "data": manifest.data,
            "programs_sha256": manifest.programs_sha256,
            "versions": manifest.versions,
            **check,
        }


@dataclass(frozen=True, slots=True)
class GroupPart:
    """What the workers of one group of all rings have written."""

    workers: int
    parameters: int
    """Elements of parameters; replicas share them, so that each is counted once."""
    bytes: int
    """Of their files."""


@dataclass(frozen=True, slots=True)
class Report:
    """A folder of checkpoints."""

    folder: Location
    checkpoints: list[Examined]
    incomplete: list[int]
    """Steps of what interrupted saves have left."""
    set_aside: list[int]
    """Steps of those that a run has left behind by going on from an earlier step."""

    @property
    def ok(self) -> bool:
        """Whether nothing wrong has been found."""
        return not any(one.problems for one in self.checkpoints)

    def as_json(self, now: datetime) -> dict[str, Any]:
        """One object; `now` is aware of its time zone."""
        return {
            "folder": str(self.folder),
            "ok": self.ok,
            "checkpoints": [one.as_json(now) for one in self.checkpoints],
            "incomplete": self.incomplete,
            "set_aside": self.set_aside,
        }


def groups(manifest: Manifest) -> dict[str, GroupPart]:
    """What each group has written, by its name, in the order of workers."""
    parameters = [0] * len(manifest.files)
    for entry in manifest.parameters.values():
        for start, stop, index in entry.slices:
            parameters[index] += stop - start
    found: dict[str, GroupPart] = {}
    for file, count in zip(manifest.files, parameters, strict=True):
        name = str(Worker.parse(file.worker).group)
        before = found.get(name, GroupPart(0, 0, 0))
        found[name] = GroupPart(
            before.workers + 1, before.parameters + count, before.bytes + file.size_bytes
        )
    return found


def age_s(manifest: Manifest, now: datetime) -> float:
    """Time since it was saved; never negative, as clocks of two machines may differ."""
    return max(0.0, (now - datetime.fromisoformat(manifest.saved_at)).total_seconds())


def examine(folder: Location, steps: Sequence[int], *, read: bool = False) -> Report:
    """Look at the checkpoints of `steps` in `folder`, with `read` at every byte of them.

    Raises CheckpointError where the folder cannot be listed.
    """
    examined = [_examined(step, step_place(folder, step), read) for step in steps]
    return Report(folder, examined, incomplete_steps(folder), set_aside_steps(folder))


def _examined(step: int, place: Location, read: bool) -> Examined:
    try:
        manifest = read_manifest(place)
    except CheckpointError as error:
        return Examined(step, place, None, [str(error)], read)
    check = content_problems if read else size_problems
    return Examined(step, place, manifest, check(place, manifest), read)


def layout(manifest: Manifest) -> str:
    """The workers that wrote it, in words; empty where its config is of another version."""
    try:
        return manifest.run_config().parallel.summary
    except CheckpointError:
        return f"{len(manifest.files)} workers"


def precision(manifest: Manifest) -> str:
    """Type of its weights, as `train.precision`."""
    train = manifest.config.get("train", {})
    return str(train.get("precision", "")) if isinstance(train, dict) else ""
