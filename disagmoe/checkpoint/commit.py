"""From the parts of all workers to a complete checkpoint."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from disagmoe.checkpoint.blocks import BLOCK_BYTES
from disagmoe.checkpoint.manifest import (
    FORMAT_VERSION,
    Done,
    Manifest,
    ParameterEntry,
    write_manifest,
)
from disagmoe.checkpoint.part import Part
from disagmoe.checkpoint.slices import Shape, uncovered
from disagmoe.config.run import RunConfig
from disagmoe.storage import Location


def commit(
    place: Location,
    parts: Sequence[Part],
    *,
    shapes: Mapping[str, Shape],
    done: Done,
    data: Mapping[str, Any],
    config: RunConfig,
    programs_sha256: str,
    versions: dict[str, str],
    block_bytes: int = BLOCK_BYTES,
) -> Manifest:
    """Write the manifest of the checkpoint in `place`, all of whose `parts` are durable; `shapes`
    are those of all that it has to hold.

    Raises CheckpointError where it cannot be written.
    """
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        saved_at=datetime.now(UTC).isoformat(timespec="seconds"),
        done=done,
        data=dict(data),
        config=config.model_dump(),
        programs_sha256=programs_sha256,
        versions=versions,
        block_bytes=block_bytes,
        files=[part.file for part in parts],
        parameters=_parameters(parts, shapes),
    )
    write_manifest(place, manifest)
    return manifest


def _parameters(parts: Sequence[Part], shapes: Mapping[str, Shape]) -> dict[str, ParameterEntry]:
    """All of `shapes`, with the place of all of their elements."""
    found = {name: ParameterEntry(shape=shape, slices=[]) for name, shape in shapes.items()}
    for index, part in enumerate(parts):
        for piece in part.slices:
            entry = found.get(piece.name)
            if entry is None or entry.shape != piece.shape:
                raise AssertionError(
                    f"{part.file.worker} has saved {piece.name} of shape {piece.shape}, which the "
                    "model has not"
                )
            entry.slices.append((piece.start, piece.stop, index))
    for name, entry in found.items():
        size = math.prod(entry.shape)
        covered = [(start, stop) for start, stop, _ in entry.slices]
        gaps = list(uncovered(0, size, covered))
        if gaps or sum(stop - start for start, stop in covered) != size:
            raise AssertionError(f"{name} is not saved exactly once: {entry.slices} of {size}")
    return found
