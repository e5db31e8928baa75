"""Tensors in a safetensors file, streamed: what is written or read is never in memory twice.

The format is 8 bytes with the length of a JSON header, the header, and the tensors' bytes without
gaps, all little-endian (github.com/huggingface/safetensors, README "Format").
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from disagmoe.checkpoint.blocks import HashedReader, HashedWriter
from disagmoe.errors import CheckpointError

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LENGTH_BYTES = 8
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor stands in a file."""

    dtype: torch.dtype
    count: int
    """Elements."""
    start: int
    """First byte in the file."""


def write_tensors(
    writer: HashedWriter, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> None:
    """Write contiguous CPU `tensors` by name. Raises OSError where it cannot be written."""
    # larger types first, so that each tensor starts at a multiple of its element size
    order = sorted(tensors, key=lambda name: -tensors[name].element_size())
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for name in order:
        tensor = tensors[name]
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    writer.write(len(text).to_bytes(_LENGTH_BYTES, "little"))
    writer.write(text)
    for name in order:
        writer.write(_bytes_of(tensors[name]))


def read_header(reader: HashedReader) -> dict[str, Stored]:
    """Return where each tensor of a file stands, by name.

    Raises CheckpointError for a header that this version does not read.
    """
    length = bytearray(_LENGTH_BYTES)
    reader.read(0, memoryview(length))
    text = bytearray(int.from_bytes(length, "little"))
    reader.read(_LENGTH_BYTES, memoryview(text))
    data = _LENGTH_BYTES + len(text)
    try:
        entries = json.loads(text)
        return {
            name: Stored(
                _DTYPES[entry["dtype"]], math.prod(entry["shape"]), data + entry["data_offsets"][0]
            )
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"a file of the checkpoint has no readable header: {error}"
        ) from error


def read_elements(reader: HashedReader, stored: Stored, start: int, target: torch.Tensor) -> None:
    """Fill the flat contiguous `target` with the elements of `stored` from `start` on, converted to
    its type and moved to its device."""
    direct = target.dtype == stored.dtype and target.device.type == "cpu"
    buffer = target if direct else torch.empty(target.shape, dtype=stored.dtype)
    reader.read(stored.start + start * buffer.element_size(), _bytes_of(buffer))
    if buffer is not target:
        target.copy_(buffer)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().reshape(-1)
    return flat.view(torch.uint8).numpy().data
