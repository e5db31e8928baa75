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
from disagmoe.checkpoint.slices import uncovered
from disagmoe.config.run import RunConfig
from disagmoe.storage import Location


def commit(
    place: Location,
    parts: Sequence[Part],
    *,
    done: Done,
    data: Mapping[str, Any],
    config: RunConfig,
    programs_sha256: str,
    versions: dict[str, str],
    block_bytes: int = BLOCK_BYTES,
) -> Manifest:
    """Write the manifest of the checkpoint in `place`, all of whose `parts` are durable.

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
        parameters=_parameters(parts),
    )
    write_manifest(place, manifest)
    return manifest


def _parameters(parts: Sequence[Part]) -> dict[str, ParameterEntry]:
    """Every parameter once, with the place of all of its elements."""
    found: dict[str, ParameterEntry] = {}
    for index, part in enumerate(parts):
        for piece in part.slices:
            entry = found.setdefault(piece.name, ParameterEntry(shape=piece.shape, slices=[]))
            entry.slices.append((piece.start, piece.stop, index))
    for name, entry in found.items():
        size = math.prod(entry.shape)
        covered = [(start, stop) for start, stop, _ in entry.slices]
        gaps = list(uncovered(0, size, covered))
        if gaps or sum(stop - start for start, stop in covered) != size:
            raise AssertionError(f"{name} is not saved exactly once: {entry.slices} of {size}")
    return found
