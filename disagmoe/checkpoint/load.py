"""Any slice of a checkpoint into any tensor, whatever layout wrote it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from disagmoe.checkpoint.blocks import REMEDY, HashedReader
from disagmoe.checkpoint.manifest import FileEntry, Manifest
from disagmoe.checkpoint.part import random_device, tensor_name
from disagmoe.checkpoint.slices import Kind, Slice, uncovered
from disagmoe.checkpoint.tensors import Stored, read_elements, read_header
from disagmoe.errors import CheckpointError
from disagmoe.storage import Location


@dataclass(frozen=True, slots=True)
class Wanted:
    """A slice to read, and where it goes."""

    slice: Slice
    kind: Kind
    target: torch.Tensor
    """Flat and contiguous; of any type and on any device."""


@dataclass(frozen=True, slots=True)
class _Read:
    """The common elements of what is wanted and what a file has."""

    wanted: Wanted
    start: int
    stop: int
    """In the parameter."""
    stored_from: int
    """First element of the file's part in the parameter."""

    @property
    def target(self) -> torch.Tensor:
        first = self.wanted.slice.start
        return self.wanted.target[self.start - first : self.stop - first]


def load(place: Location, manifest: Manifest, wanted: Iterable[Wanted]) -> None:
    """Fill all targets from the checkpoint in `place`.

    Each file that holds some of it is opened once and read in one direction; beside the targets,
    one block is in memory, and one slice where a target has another type or device than the file.
    Weights that were not kept, because they equal the masters, are read from these.

    Raises CheckpointError where the checkpoint is of another model, lacks something, or is damaged.
    """
    reads: dict[int, list[_Read]] = {}
    for item in wanted:
        for index, read in _reads(place, manifest, item):
            reads.setdefault(index, []).append(read)
    for index, found in sorted(reads.items()):
        entry = manifest.files[index]
        with HashedReader(place, entry, manifest.block_bytes) as reader:
            header = read_header(reader)
            located = [(_locate(header, read, place, entry), read) for read in found]
            for stored, read in sorted(located, key=lambda pair: (pair[0].start, pair[1].start)):
                read_elements(reader, stored, read.start - read.stored_from, read.target)


def load_random(place: Location, manifest: Manifest, worker: str) -> dict[str, torch.Tensor]:
    """Return the states of random numbers that `worker` saved, by type of device; {} where no
    worker of this name has saved any. Raises CheckpointError for a damaged file."""
    states = {}
    for entry in manifest.files:
        if entry.worker == worker:
            with HashedReader(place, entry, manifest.block_bytes) as reader:
                for name, stored in read_header(reader).items():
                    device = random_device(name)
                    if device is not None:
                        states[device] = torch.empty(stored.count, dtype=stored.dtype)
                        read_elements(reader, stored, 0, states[device])
    return states


def _reads(place: Location, manifest: Manifest, item: Wanted) -> Iterable[tuple[int, _Read]]:
    want = item.slice
    entry = manifest.parameters.get(want.name)
    if entry is None:
        raise CheckpointError(
            f"{place}: has no parameter {want.name}; it is a checkpoint of another model"
        )
    if entry.shape != want.shape:
        raise CheckpointError(
            f"{place}: {want.name} has shape {entry.shape} there and {want.shape} here; it is a "
            "checkpoint of another model"
        )
    found = []
    for first, end, index in entry.slices:
        start, stop = max(first, want.start), min(end, want.stop)
        if start < stop:
            found.append((index, _Read(item, start, stop, first)))
    covered = [(read.start, read.stop) for _, read in found]
    for start, stop in uncovered(want.start, want.stop, covered):
        raise CheckpointError(
            f"{place}: lacks elements {start} to {stop} of {want.name}, of "
            f"{math.prod(want.shape)}; {REMEDY}"
        )
    return found


def _locate(header: Mapping[str, Stored], read: _Read, place: Location, entry: FileEntry) -> Stored:
    kind, name = read.wanted.kind, read.wanted.slice.name
    stored = header.get(tensor_name(kind, name))
    if stored is None and kind is Kind.WEIGHT:
        stored = header.get(tensor_name(Kind.MASTER, name))
    if stored is None:
        raise CheckpointError(f"{place / entry.name}: lacks {tensor_name(kind, name)}; {REMEDY}")
    return stored
