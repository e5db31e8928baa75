"""`manifest.json`: what a checkpoint holds and where; its presence says that all of it is there."""

import json
import math
from typing import Any

from pydantic import ValidationError

from disagmoe.checkpoint.slices import Shape
from disagmoe.config.base import Section
from disagmoe.config.run import RunConfig
from disagmoe.errors import CheckpointDamaged, CheckpointError, StorageError
from disagmoe.storage import Location, reason_of

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
SUFFIX = ".safetensors"


def file_name(worker: str) -> str:
    """Name of the file that `worker` writes."""
    return f"{worker}{SUFFIX}"


class FileEntry(Section):
    """One file, written by one worker."""

    name: str
    """Name in the directory of the checkpoint."""
    worker: str
    """Who wrote it, such as `A0.1`."""
    size_bytes: int
    """Its size."""
    sha256: list[str]
    """Hash of each block of `block_bytes`, the last one being shorter."""


class ParameterEntry(Section):
    """Where one parameter of the network lies."""

    shape: Shape
    """Global shape."""
    slices: list[tuple[int, int, int]]
    """First element, end, and index of the file, for each part; elements count row by row."""


class Done(Section):
    """What a run has done."""

    step: int
    """Optimizer steps done, skipped ones included; the next one has this number."""
    updates: int
    """Steps with an update, which the optimizer's bias correction counts."""
    tokens: int
    """Tokens trained on."""
    first_loss: float | None
    """Loss of the first step; None where it was not finite."""
    last_loss: float | None = None
    """Loss of the last step, likewise."""


class Manifest(Section):
    """The content of `manifest.json`."""

    format_version: int
    """Version of this format."""
    saved_at: str
    """Time of the commit, ISO 8601, UTC."""
    done: Done
    """How far the run was."""
    data: dict[str, Any]
    """Where the data stood, in the words of who reads it."""
    config: dict[str, Any]
    """The resolved config, with what was measured."""
    programs_sha256: str
    """Hash of the programs that workers ran."""
    versions: dict[str, str]
    """Of Python and the libraries that decide results."""
    block_bytes: int
    """Bytes that each hash of a file covers."""
    files: list[FileEntry]
    """One for each worker, in the order of workers."""
    parameters: dict[str, ParameterEntry]
    """By global name; one for each matrix of each expert."""

    @property
    def step(self) -> int:
        """Steps done."""
        return self.done.step

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(file.size_bytes for file in self.files)

    @property
    def parameter_count(self) -> int:
        """Elements of all parameters."""
        return sum(math.prod(entry.shape) for entry in self.parameters.values())

    def run_config(self) -> RunConfig:
        """Return the config of the run that was saved.

        Raises CheckpointError where this version knows other settings.
        """
        try:
            return RunConfig.model_validate(self.config)
        except ValidationError as error:
            raise CheckpointError(
                f"the checkpoint's config is not one of this version of DisagMoE (it was saved by "
                f"{self.versions.get('disagmoe', 'another')}): {error}"
            ) from error


def read_manifest(place: Location) -> Manifest:
    """Read and check the manifest of the checkpoint in the directory `place`.

    Raises CheckpointError when it is missing or of another version, CheckpointDamaged when it is
    broken.
    """
    file = place / MANIFEST
    try:
        if not file.is_file():
            raise CheckpointError(
                f"{place}: holds no complete checkpoint; {MANIFEST}, written last, is missing"
            )
        content = file.read_bytes()
    except StorageError as error:
        raise CheckpointError(str(error)) from error
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({reason_of(error)})") from error
    try:
        version = json.loads(content)["format_version"]
        if version == FORMAT_VERSION:
            return Manifest.model_validate_json(content)
    except (ValueError, KeyError, TypeError) as error:  # pydantic's are ValueErrors
        raise CheckpointDamaged(
            f"{file}: is damaged ({error}); restore it from a copy, or use another checkpoint"
        ) from error
    raise CheckpointError(
        f"{file}: has format version {version}, but this version of DisagMoE reads "
        f"{FORMAT_VERSION}; use the version that wrote it"
    )


def write_manifest(place: Location, manifest: Manifest) -> None:
    """Commit the checkpoint in `place`. Raises CheckpointError when it cannot be written."""
    try:
        (place / MANIFEST).write_bytes(manifest.model_dump_json().encode())
    except OSError as error:
        raise CheckpointError(
            f"{place / MANIFEST}: cannot be written ({reason_of(error)})"
        ) from error
