"""Whether a checkpoint is what was written."""

from disagmoe.checkpoint.blocks import HashedReader, size_problem
from disagmoe.checkpoint.manifest import Manifest
from disagmoe.errors import CheckpointError
from disagmoe.storage import Location, reason_of


def size_problems(place: Location, manifest: Manifest) -> list[str]:
    """Files of the checkpoint in `place` that are missing or have another size.

    Raises CheckpointError where the directory cannot be listed.
    """
    try:
        sizes = {str(info.base_name): info.size for info in place.entries()}
    except OSError as error:
        raise CheckpointError(f"{place}: cannot be listed ({reason_of(error)})") from error
    found = (size_problem(place / file.name, file, sizes.get(file.name)) for file in manifest.files)
    return [problem for problem in found if problem]


def content_problems(place: Location, manifest: Manifest) -> list[str]:
    """What is wrong with its files after reading every byte of them."""
    found = []
    for file in manifest.files:
        try:
            with HashedReader(place, file, manifest.block_bytes) as reader:
                reader.check()
        except CheckpointError as error:
            found.append(str(error))
    return found
