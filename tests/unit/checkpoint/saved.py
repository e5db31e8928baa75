"""Small checkpoints without a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from disagmoe.checkpoint.catalogue import step_place
from disagmoe.checkpoint.commit import commit
from disagmoe.checkpoint.manifest import Done, Manifest
from disagmoe.checkpoint.part import Part, Piece, write_part
from disagmoe.checkpoint.slices import Kind, Slice
from disagmoe.config.run import RunConfig
from disagmoe.config.tomlwrite import dump_toml
from disagmoe.storage import Location

ROOT = Path(__file__).resolve().parents[3]
TINY = RunConfig.load(ROOT / "configs/tiny.toml")
BLOCK_BYTES = 64

Cuts = Mapping[str, Sequence[tuple[int, int]]]
"""Slices of each parameter that one worker saves."""


def values(shapes: Mapping[str, tuple[int, ...]]) -> dict[tuple[Kind, str], torch.Tensor]:
    """Different numbers for each kind and element."""
    out = {}
    for row, (name, shape) in enumerate(shapes.items()):
        for place, kind in enumerate((Kind.MASTER, Kind.EXP_AVG, Kind.EXP_AVG_SQ)):
            count = torch.Size(shape).numel()
            out[kind, name] = (torch.arange(count) + 1000 * row + 0.25 * place).view(shape)
        out[Kind.WEIGHT, name] = out[Kind.MASTER, name].bfloat16()
    return out


def parts(
    place: Location,
    whole: Mapping[tuple[Kind, str], torch.Tensor],
    cuts: Sequence[Cuts],
    kinds: Sequence[Kind] = tuple(Kind),
) -> list[Part]:
    """Write one file for each of `cuts`."""
    written = []
    for rank, own in enumerate(cuts):
        pieces = []
        for name, bounds in own.items():
            for start, stop in bounds:
                tensors = {kind: whole[kind, name].flatten()[start:stop].clone() for kind in kinds}
                shape = tuple(whole[Kind.MASTER, name].shape)
                pieces.append(Piece(Slice(name, shape, start, stop), tensors))
        random = {"cpu": torch.arange(16, dtype=torch.uint8) + rank}
        written.append(write_part(place, f"A0.{rank}", pieces, random, block_bytes=BLOCK_BYTES))
    return written


def saved(
    folder: Path | Location,
    whole: Mapping[tuple[Kind, str], torch.Tensor],
    cuts: Sequence[Cuts],
    *,
    step: int = 1,
    kinds: Sequence[Kind] = tuple(Kind),
    config: RunConfig = TINY,
    data: Mapping[str, Any] | None = None,
) -> tuple[Location, Manifest]:
    """Save a whole checkpoint into `folder`; return its place and manifest."""
    root = folder if isinstance(folder, Location) else Location.parse(str(folder))
    place = step_place(root, step)
    manifest = commit(
        place,
        parts(place, whole, cuts, kinds),
        shapes={name: tuple(t.shape) for (kind, name), t in whole.items() if kind is Kind.MASTER},
        done=Done(step=step, updates=step, tokens=100 * step, first_loss=5.0, last_loss=4.5),
        data=data or {},
        config=config,
        programs_sha256="00",
        versions={"disagmoe": "1"},
        block_bytes=BLOCK_BYTES,
    )
    return place, manifest


def small(folder: Path | Location, step: int = 1) -> tuple[Location, Manifest]:
    """A checkpoint of two files."""
    whole = values({"a": (4, 6), "b": (7,)})
    return saved(folder, whole, [{"a": [(0, 24)]}, {"b": [(0, 7)]}], step=step)


def saved_run(path: Path) -> Path:
    """Make `path` the directory of a run that has saved after steps 2 and 4."""
    for step in (2, 4):
        small(path / "checkpoints", step)
    (path / "config.toml").write_text(dump_toml(TINY))
    return path
