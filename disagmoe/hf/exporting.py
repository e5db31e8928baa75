"""A checkpoint as a Transformers model: files of safetensors with an index, settings, tokenizer."""

import json
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from disagmoe.checkpoint.find import Found, find
from disagmoe.checkpoint.load import Wanted, load
from disagmoe.checkpoint.slices import Kind, Slice
from disagmoe.config.model import ModelConfig
from disagmoe.errors import ConfigError, DataError
from disagmoe.hf.importing import FOLDER
from disagmoe.hf.quantised import KEY
from disagmoe.hf.settings import from_hf, to_hf
from disagmoe.hf.source import CONFIG, INDEX, SINGLE, carry, read_settings
from disagmoe.hf.tensors import Fusion, HfTensor, hf_tensors
from disagmoe.model import names
from disagmoe.units import GIB

SHARD_BYTES = 4 * GIB
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_NAMES = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was done."""

    out: str
    model: ModelConfig
    tensors: int
    size_bytes: int
    carried: tuple[str, ...]
    """Files that came from the imported model, config.json included."""


def export_model(
    checkpoint: str,
    out: Path,
    *,
    like: Path | None = None,
    dtype: str = "bf16",
    fusion: Fusion = "per_expert",
    shard_bytes: int = SHARD_BYTES,
) -> Exported:
    """Write the checkpoint `D[@STEP]` to the new folder `out`, one file of `shard_bytes` in memory.

    Settings and tokenizer are those of the model in `like`, or of the one that the checkpoint was
    imported from; without either, settings are written anew. Where theirs have fewer rows of
    vocabulary, the rows that were added to them are left out; what they say of quantisation is,
    too.

    Raises CheckpointError, ConfigError and DataError where something does not fit.
    """
    found = find(checkpoint)
    run = found.manifest.run_config()
    origin = like or _imported_from(found)
    settings = (
        to_hf(run.model, max_positions=run.train.sequence_length)
        if origin is None
        else read_settings(origin)
    )
    model = from_hf(settings)
    _check(model, run.model, origin)
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out}: is not empty; name a new folder")
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    carried = carry(origin, partial) if origin is not None else []
    settings = {key: value for key, value in settings.items() if key != KEY}
    settings[_dtype_key(settings)] = _NAMES[dtype]
    (partial / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    tensors = hf_tensors(model, fusion)
    size = _write(found, tensors, run.model, partial, _DTYPES[dtype], shard_bytes)
    if out.exists():
        out.rmdir()
    partial.rename(out)
    return Exported(str(out), model, len(tensors), size, tuple(carried))


def _imported_from(found: Found) -> Path | None:
    """Where the checkpoint keeps what came along with its model, if it was imported."""
    if not found.place.is_local:
        return None
    folder = Path((found.place / FOLDER).path)
    return folder if folder.is_dir() else None


def _dtype_key(settings: dict[str, Any]) -> str:
    return "dtype" if "dtype" in settings else "torch_dtype"


def _check(theirs: ModelConfig, ours: ModelConfig, origin: Path | None) -> None:
    """Raise ConfigError where a file describes another network than the checkpoint holds."""
    skipped = {"vocab_size", "init_std", "forced_balance"}
    different = [
        f"model.{name} = {getattr(ours, name)} in the checkpoint, {getattr(theirs, name)} in "
        f"{origin}/{CONFIG}"
        for name in ModelConfig.model_fields
        if name not in skipped and getattr(ours, name) != getattr(theirs, name)
    ]
    if theirs.vocab_size > ours.vocab_size:
        different.append(
            f"{origin}/{CONFIG} has {theirs.vocab_size} rows of vocabulary, the checkpoint "
            f"{ours.vocab_size}"
        )
    if different:
        raise ConfigError(different)


def _write(
    found: Found,
    tensors: tuple[HfTensor, ...],
    ours: ModelConfig,
    folder: Path,
    dtype: torch.dtype,
    shard_bytes: int,
) -> int:
    """Write all files and return the bytes of all tensors."""
    shards = list(_shards(tensors, dtype, shard_bytes))
    weight_map: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards, start=1):
        name = (
            SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        )
        values = _read(found, shard, ours, dtype)
        total += sum(value.numel() * value.element_size() for value in values.values())
        save_file(values, folder / name, metadata={"format": "pt"})
        _sync(folder / name)
        weight_map |= dict.fromkeys(values, name)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return total


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _shards(
    tensors: tuple[HfTensor, ...], dtype: torch.dtype, shard_bytes: int
) -> Iterator[list[HfTensor]]:
    shard: list[HfTensor] = []
    size = 0
    for tensor in tensors:
        nbytes = math.prod(tensor.shape) * dtype.itemsize
        if shard and size + nbytes > shard_bytes:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += nbytes
    if shard:
        yield shard


def _read(
    found: Found, shard: list[HfTensor], ours: ModelConfig, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return the tensors of one file, each element of which is written once."""
    values = {
        tensor.name: torch.empty(tensor.shape, dtype=_type_of(tensor, dtype)) for tensor in shard
    }
    read: dict[str, torch.Tensor] = {}
    for tensor in shard:
        for piece in tensor.pieces:
            shape = _stored_shape(piece.view(values[tensor.name]).shape, piece.name, ours)
            read[piece.name] = torch.empty(shape, dtype=values[tensor.name].dtype)
    wanted = [
        Wanted(Slice(name, tuple(value.shape), 0, value.numel()), Kind.WEIGHT, value.flatten())
        for name, value in read.items()
    ]
    load(found.place, found.manifest, wanted)
    for tensor in shard:
        filled = 0
        for piece in tensor.pieces:
            view = piece.view(values[tensor.name])
            view.copy_(read.pop(piece.name)[: len(view)])
            filled += view.numel()
        if filled != values[tensor.name].numel():
            raise DataError(f"{tensor.name}: {filled} of its elements have a source")
    return values


def _type_of(tensor: HfTensor, dtype: torch.dtype) -> torch.dtype:
    """Balance biases stay in fp32: in bf16 small steps of them vanish."""
    return torch.float32 if tensor.name.endswith("e_score_correction_bias") else dtype


def _stored_shape(shape: tuple[int, ...], name: str, ours: ModelConfig) -> tuple[int, ...]:
    rows = ours.vocab_size if name in (names.EMBED, names.HEAD) else shape[0]
    return (rows, *shape[1:])
