"""The checkpoints in a folder, `step-N` each: which are complete, which is last, which may go.

A checkpoint is complete when it has a manifest. What has none is left from a save that was cut
short: nobody reads it, and the next run that saves into the folder deletes it.
"""

import re
from collections.abc import Sequence

from disagmoe.checkpoint.manifest import MANIFEST, SUFFIX, Manifest
from disagmoe.errors import CheckpointError
from disagmoe.storage import TEMPORARY, Location, reason_of

_STEP = re.compile(r"step-(0|[1-9][0-9]*)")
SET_ASIDE = "manifest.set-aside.json"
"""Name of a manifest whose run went on from an earlier step."""
_MARKER = "write-test"


def step_place(folder: Location, step: int) -> Location:
    """Directory of the checkpoint after `step` steps."""
    return folder / f"step-{step}"


def step_of(place: Location) -> int | None:
    """The steps of a directory's name, None where it is no checkpoint's."""
    match = _STEP.fullmatch(place.name)
    return int(match[1]) if match else None


def complete_steps(folder: Location) -> list[int]:
    """Steps of the complete checkpoints in `folder`, ascending; [] where there is no folder.

    Raises CheckpointError where it cannot be listed.
    """
    return [step for step in _steps(folder) if _has(folder, step, MANIFEST)]


def incomplete_steps(folder: Location) -> list[int]:
    """Steps of what was left by saves that were cut short, ascending."""
    names = (MANIFEST, SET_ASIDE)
    return [step for step in _steps(folder) if not any(_has(folder, step, n) for n in names)]


def set_aside_steps(folder: Location) -> list[int]:
    """Steps of the checkpoints that `set_aside` has taken out, ascending."""
    return [
        step
        for step in _steps(folder)
        if _has(folder, step, SET_ASIDE) and not _has(folder, step, MANIFEST)
    ]


def check_unused(folder: Location) -> None:
    """Raise CheckpointError where `folder` holds complete checkpoints, or is a file."""
    if folder.is_file():
        raise CheckpointError(f"{folder}: is a file; name a folder for checkpoints")
    steps = complete_steps(folder)
    if steps:
        raise CheckpointError(
            f"{folder}: holds checkpoints of another run ({names(steps)}); resume them with "
            f"--resume {folder}, or set checkpoint.folder to another place"
        )


def check_writable(folder: Location) -> None:
    """Make `folder` and write to it, hours before a first save would.

    Raises CheckpointError where that cannot be done.
    """
    marker = folder / _MARKER
    try:
        if folder.is_local:  # on an object store there are no directories
            folder.make_directory()
        marker.write_bytes(b"written to see whether it can be")
        marker.fs.delete_file(marker.path)
    except OSError as error:
        raise CheckpointError(
            f"{folder}: checkpoints cannot be saved there ({reason_of(error)}); free space or "
            "rights there, or set checkpoint.folder to another place"
        ) from error


def delete_incomplete(folder: Location) -> list[int]:
    """Delete what saves that were cut short have left, and nothing else; return their steps.

    Raises CheckpointError where something cannot be deleted.
    """
    gone = incomplete_steps(folder)
    for step in gone:
        _delete(step_place(folder, step))
    return gone


def delete_leftovers(folder: Location, manifest: Manifest) -> None:
    """Delete our files beside a complete checkpoint that are not its own: an earlier save of the
    same step, cut short or set aside, has left them.

    Raises CheckpointError where one cannot be deleted.
    """
    place = step_place(folder, manifest.step)
    own = {MANIFEST, *(file.name for file in manifest.files)}
    try:
        for name in place.names():
            if _is_ours(name) and name not in own:
                place.fs.delete_file((place / name).path)
    except OSError as error:
        raise CheckpointError(f"{place}: cannot be tidied ({reason_of(error)})") from error


def retain(folder: Location, keep_last: int) -> list[int]:
    """Delete all but the last `keep_last` complete checkpoints, 0 keeping all; return those gone.

    The manifest goes first, so that what is cut short here is incomplete. Raises CheckpointError
    where something cannot be deleted.
    """
    steps = complete_steps(folder)
    gone = steps[:-keep_last] if keep_last else []
    for step in gone:
        _delete(step_place(folder, step))
    return gone


def set_aside(folder: Location, after: int) -> list[int]:
    """Take the complete checkpoints of more than `after` steps out of the catalogue; return them.

    A run that goes on from an earlier step makes these steps anew, and `latest` must not mean
    what it has left behind. Their files stay until the same step is saved again: until then
    `manifest.set-aside.json` renamed to `manifest.json` brings one back.

    Raises CheckpointError where a file cannot be renamed.
    """
    steps = [step for step in complete_steps(folder) if step > after]
    for step in steps:
        place = step_place(folder, step)
        try:
            folder.fs.move((place / MANIFEST).path, (place / SET_ASIDE).path)
        except OSError as error:
            raise CheckpointError(
                f"{place / MANIFEST}: cannot be renamed ({reason_of(error)})"
            ) from error
    return steps


def names(steps: Sequence[int]) -> str:
    """For example `step-5, step-10`, with a count where there are many."""
    shown = [f"step-{step}" for step in steps[-5:]]
    more = [f"{len(steps) - len(shown)} earlier ones"] if len(steps) > len(shown) else []
    return ", ".join(more + shown)


def _steps(folder: Location) -> list[int]:
    try:
        infos = folder.entries()
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be listed ({reason_of(error)})") from error
    matches = [_STEP.fullmatch(str(info.base_name)) for info in infos]
    return sorted(int(match[1]) for match in matches if match)


def _has(folder: Location, step: int, name: str) -> bool:
    try:
        return (step_place(folder, step) / name).is_file()
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read ({reason_of(error)})") from error


def _delete(place: Location) -> None:
    """Delete our files in `place`, the manifest first, and `place` if nothing else is in it."""
    try:
        ours = [name for name in place.names() if _is_ours(name)]
        for name in sorted(ours, key=lambda name: name not in (MANIFEST, SET_ASIDE)):
            place.fs.delete_file((place / name).path)
        if not place.names():
            place.delete_directory()
    except OSError as error:
        raise CheckpointError(f"{place}: cannot be deleted ({reason_of(error)})") from error


def _is_ours(name: str) -> bool:
    whole = name.removesuffix(TEMPORARY)
    return whole in (MANIFEST, SET_ASIDE) or whole.endswith(SUFFIX)
