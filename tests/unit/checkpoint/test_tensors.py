from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from disagmoe.checkpoint.blocks import HashedReader, HashedWriter
from disagmoe.checkpoint.manifest import FileEntry
from disagmoe.checkpoint.tensors import read_elements, read_header, write_tensors
from disagmoe.errors import CheckpointError
from disagmoe.storage import Location

TENSORS = {
    "odd": torch.tensor([1.5, -2.0, 3.0]).bfloat16(),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "matrix": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),
    "wide": torch.randn(2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
    "none": torch.empty(0),
    "count": torch.tensor([2**40]),
}


def opened(path: Path, block_bytes: int = 16) -> HashedReader:
    """Read a file back with the hashes that it has."""
    writer = HashedWriter(open("/dev/null", "wb"), block_bytes)  # noqa: SIM115
    writer.write(path.read_bytes())
    writer._stream.close()
    entry = FileEntry(
        name=path.name, worker="A0.0", size_bytes=writer.size_bytes, sha256=writer.sha256()
    )
    return HashedReader(Location.parse(str(path.parent)), entry, block_bytes)


def test_the_safetensors_library_reads_what_is_written(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as stream:
        write_tensors(HashedWriter(stream, 16), TENSORS, {"worker": "A0.0"})
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert file.metadata() == {"worker": "A0.0"}
        assert set(file.keys()) == set(TENSORS)
        for name, tensor in TENSORS.items():
            assert file.get_tensor(name).dtype == tensor.dtype
            assert torch.equal(file.get_tensor(name), tensor)


def test_what_the_safetensors_library_writes_is_read(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "file")
    with opened(tmp_path / "file") as reader:
        header = read_header(reader)
        assert header.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            target = torch.empty(tensor.numel(), dtype=tensor.dtype)
            read_elements(reader, header[name], 0, target)
            assert torch.equal(target, tensor.flatten())


def test_elements_in_the_middle_and_in_another_type(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "file")
    with opened(tmp_path / "file") as reader:
        stored = read_header(reader)["matrix"]
        target = torch.zeros(9, dtype=torch.float64)
        read_elements(reader, stored, 4, target[2:6])
    expected = TENSORS["matrix"].flatten()[4:8].double()
    assert torch.equal(target, torch.cat([torch.zeros(2), expected, torch.zeros(3)]))


def test_a_header_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes((4).to_bytes(8, "little") + b"null")
    with (
        opened(tmp_path / "file") as reader,
        pytest.raises(CheckpointError, match="has no readable header"),
    ):
        read_header(reader)
