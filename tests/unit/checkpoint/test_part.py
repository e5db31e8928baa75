import os
from pathlib import Path

import pytest
import torch

from disagmoe.checkpoint.part import Piece, write_part
from disagmoe.checkpoint.slices import Kind, Slice
from disagmoe.errors import CheckpointError
from disagmoe.storage import Location
from tests.unit.checkpoint.saved import parts, values

PIECE = Piece(Slice("a", (2, 3), 1, 4), {Kind.MASTER: torch.tensor([1.0, 2.0, 3.0])})


def test_a_part_says_what_is_in_it(tmp_path: Path) -> None:
    place = Location.parse(str(tmp_path / "step-1"))
    part = write_part(place, "F0.1", [PIECE], {"cpu": torch.zeros(3, dtype=torch.uint8)})
    assert part.slices == (PIECE.slice,)
    assert (part.file.name, part.file.worker) == ("F0.1.safetensors", "F0.1")
    assert part.file.size_bytes == (tmp_path / "step-1/F0.1.safetensors").stat().st_size
    assert place.names() == ["F0.1.safetensors"]


def test_equal_states_give_equal_files(tmp_path: Path) -> None:
    whole = values({"a": (2, 3)})
    one, other = (
        parts(Location.parse(str(tmp_path / name)), whole, [{"a": [(0, 6)]}]) for name in "xy"
    )
    assert one == other


def test_a_full_disk_is_an_error_that_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    os.symlink("/dev/full", tmp_path / "F0.1.safetensors.partial")
    message = (
        rf"^F0\.1 cannot write its 12 B of a checkpoint to {tmp_path}/F0\.1\.safetensors: "
        r"No space left on device; free space or rights there, or set checkpoint\.folder"
    )
    with pytest.raises(CheckpointError, match=message):
        write_part(Location.parse(str(tmp_path)), "F0.1", [PIECE], {})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "step-1").write_text("a file")
    with pytest.raises(CheckpointError, match=r"step-1/F0\.1\.safetensors: File exists; free"):
        write_part(Location.parse(str(tmp_path / "step-1")), "F0.1", [PIECE], {})


def test_a_part_replaces_what_an_interrupted_save_has_left(tmp_path: Path) -> None:
    for name in ("F0.1.safetensors", "F0.1.safetensors.partial"):
        (tmp_path / name).write_bytes(b"half" * 1000)
    part = write_part(Location.parse(str(tmp_path)), "F0.1", [PIECE], {})
    assert os.listdir(tmp_path) == ["F0.1.safetensors"]
    assert (tmp_path / "F0.1.safetensors").stat().st_size == part.file.size_bytes
