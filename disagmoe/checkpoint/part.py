"""One worker's part of a checkpoint: its file, and what is in it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from disagmoe.checkpoint.blocks import BLOCK_BYTES, HashedWriter
from disagmoe.checkpoint.manifest import FORMAT_VERSION, FileEntry, file_name
from disagmoe.checkpoint.slices import Kind, Slice
from disagmoe.checkpoint.tensors import write_tensors
from disagmoe.errors import CheckpointError
from disagmoe.storage import Location, reason_of
from disagmoe.units import format_bytes

_RANDOM = "random/"


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice of one parameter, and what is kept of it."""

    slice: Slice
    tensors: Mapping[Kind, torch.Tensor]
    """Flat, contiguous, on the CPU."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file that is complete and durable."""

    file: FileEntry
    slices: tuple[Slice, ...]


def tensor_name(kind: Kind, parameter: str) -> str:
    """Name of a tensor in the file."""
    return f"{kind}/{parameter}"


def random_name(device: str) -> str:
    """Name of the state of the random numbers of a type of device."""
    return f"{_RANDOM}{device}"


def random_device(name: str) -> str | None:
    """The inverse of `random_name`; None for the name of another tensor."""
    return name.removeprefix(_RANDOM) if name.startswith(_RANDOM) else None


def write_part(
    directory: Location,
    worker: str,
    pieces: Iterable[Piece],
    random: Mapping[str, torch.Tensor],
    *,
    block_bytes: int = BLOCK_BYTES,
) -> Part:
    """Write the file of `worker`, whole and durable; `random` holds states of random numbers by
    type of device.

    Raises CheckpointError where it cannot be written, with the reason and what to do.
    """
    tensors = {random_name(device): state for device, state in random.items()}
    slices = []
    for piece in pieces:
        slices.append(piece.slice)
        shape = piece.slice.shape if piece.slice.is_whole else (-1,)
        for kind, tensor in piece.tensors.items():
            tensors[tensor_name(kind, piece.slice.name)] = tensor.view(shape)
    file = directory / file_name(worker)
    metadata = {"format": f"disagmoe checkpoint {FORMAT_VERSION}", "worker": worker}
    try:
        if directory.is_local:  # on an object store there are no directories
            directory.make_directory()
        with file.writing() as stream:
            writer = HashedWriter(stream, block_bytes)
            write_tensors(writer, tensors, metadata)
    except OSError as error:
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        raise CheckpointError(
            f"{worker} cannot write its {format_bytes(nbytes)} of a checkpoint to {file}: "
            f"{reason_of(error)}; free space or rights there, or set checkpoint.folder to another "
            "place, and resume from the last complete checkpoint"
        ) from error
    entry = FileEntry(
        name=file.name, worker=worker, size_bytes=writer.size_bytes, sha256=writer.sha256()
    )
    return Part(entry, tuple(slices))
