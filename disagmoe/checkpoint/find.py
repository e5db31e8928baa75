"""Which checkpoint `D[@STEP]` means: of a run directory, of a folder of checkpoints, or itself."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from disagmoe.checkpoint.blocks import REMEDY
from disagmoe.checkpoint.catalogue import complete_steps, names, step_of, step_place
from disagmoe.checkpoint.check import size_problems
from disagmoe.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from disagmoe.config.tomlread import read_toml
from disagmoe.errors import CheckpointDamaged, CheckpointError, ConfigError
from disagmoe.storage import Location

RUN_FOLDER = "checkpoints"
"""Folder of checkpoints in a run directory, unless `checkpoint.folder` names another."""
_RUN_CONFIG = "config.toml"
_AT_STEP = re.compile(r"(.+)@(0|[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of checkpoints, and the local run directory that it belongs to, if that is known."""

    place: Location
    run_dir: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """A complete checkpoint."""

    folder: Folder
    manifest: Manifest

    @property
    def place(self) -> Location:
        """Its directory."""
        return step_place(self.folder.place, self.manifest.step)


def find(text: str) -> Found:
    """Return the checkpoint that `text` means: `D` the last one of D, `D@STEP` that after STEP
    steps. D is a run directory, a folder of checkpoints, or the directory of one.

    Raises:
        ConfigError, StorageError: D is not there or cannot be read.
        CheckpointError: it has no such complete checkpoint, or the manifest is damaged.
    """
    return _last(*complete_in(text))


def complete_in(text: str) -> tuple[Folder, list[int]]:
    """Return the folder that `D[@STEP]` means, and the steps of its complete checkpoints, at least
    one, ascending; with STEP that one alone.

    Raises ConfigError, StorageError, CheckpointError as `find` does, but for a damaged manifest.
    """
    folder, step = _asked_for(text)
    steps = complete_steps(folder.place)
    if step in steps:
        return folder, [step]
    if step is not None:
        has = f"it has {names(steps)}" if steps else "it has none"
        raise CheckpointError(f"{folder.place}: has no complete checkpoint step-{step}; {has}")
    if not steps:
        raise CheckpointError(
            f"{text}: holds no complete checkpoint (looked for {folder.place}/step-N/{MANIFEST})"
        )
    return folder, steps


def _asked_for(text: str) -> tuple[Folder, int | None]:
    """Return the folder that `D[@STEP]` means, and its step, None for the last one.

    Raises ConfigError, StorageError where D cannot be read, or names two steps.
    """
    match = _AT_STEP.fullmatch(text)
    where, step = (match[1], int(match[2])) if match else (text, None)
    place = Location.parse(where)
    own_step = step_of(place)
    if own_step is None:
        return folder_of(place), step
    if step not in (None, own_step):
        raise ConfigError(f"{text}: names two steps; give the folder or the step")
    return folder_of(place.parent), own_step


def last_good(folder: Folder) -> tuple[Found | None, list[str]]:
    """Return the last complete checkpoint of `folder` that is whole, None where none is complete;
    and what is wrong with later ones. Manifests and sizes are looked at; loading checks all bytes.

    Raises:
        CheckpointDamaged: there are complete ones, and each is damaged.
        CheckpointError: one is of another version, or cannot be read.
    """
    steps, damages = complete_steps(folder.place), list[str]()
    for step in reversed(steps):
        place = step_place(folder.place, step)
        try:
            found = Found(folder, read_manifest(place))
        except CheckpointDamaged as error:
            damages.append(str(error))
            continue
        problems = size_problems(place, found.manifest)
        if not problems:
            return found, damages
        damages += problems
    if steps:
        raise CheckpointDamaged(
            "\n".join([f"{folder.place}: all its checkpoints are damaged", *damages, REMEDY])
        )
    return None, []


def _last(folder: Folder, steps: Sequence[int]) -> Found:
    return Found(folder, read_manifest(step_place(folder.place, steps[-1])))


def folder_of(place: Location) -> Folder:
    """Return the folder of checkpoints that `place` is, or that the run directory `place` has."""
    if place.is_local:
        if (place / _RUN_CONFIG).is_file():
            return Folder(_folder_of_run(place), place.path)
        if place.name == RUN_FOLDER and (place.parent / _RUN_CONFIG).is_file():
            return Folder(place, place.parent.path)
    return Folder(place, None)


def _folder_of_run(run_dir: Location) -> Location:
    tree = read_toml((run_dir / _RUN_CONFIG).path)
    table = tree.get("checkpoint", {})
    named = table.get("folder", "") if isinstance(table, dict) else ""
    return run_folder(str(named), run_dir.path)


def run_folder(named: str, run_dir: str) -> Location:
    """Where the run in `run_dir` keeps its checkpoints, with `named` as `checkpoint.folder`."""
    return Location.parse(named) if named else Location.parse(run_dir) / RUN_FOLDER
