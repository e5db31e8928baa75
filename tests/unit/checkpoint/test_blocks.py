import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.checkpoint.blocks import HashedReader, HashedWriter
from disagmoe.checkpoint.manifest import FileEntry
from disagmoe.errors import CheckpointError
from disagmoe.storage import Location

DATA = bytes(range(100))


@given(st.binary(max_size=50), st.lists(st.integers(0, 20), max_size=6), st.integers(1, 60))
def test_each_block_has_its_hash_however_it_was_written(
    data: bytes, cuts: list[int], block_bytes: int
) -> None:
    target = io.BytesIO()
    writer = HashedWriter(target, block_bytes)
    at = 0
    for cut in (*cuts, len(data)):
        writer.write(data[at : at + cut])
        at += cut
    blocks = [data[start : start + block_bytes] for start in range(0, len(data), block_bytes)]
    assert writer.sha256() == [hashlib.sha256(block).hexdigest() for block in blocks]
    assert (target.getvalue(), writer.size_bytes) == (data, len(data))


@pytest.fixture
def entry(tmp_path: Path) -> FileEntry:
    with (tmp_path / "file").open("wb") as stream:
        writer = HashedWriter(stream, 32)
        writer.write(DATA)
    return FileEntry(name="file", worker="A0.0", size_bytes=100, sha256=writer.sha256())


def reader(folder: Path, entry: FileEntry) -> HashedReader:
    return HashedReader(Location.parse(str(folder)), entry, 32)


@pytest.mark.parametrize(("start", "stop"), [(0, 100), (0, 0), (31, 33), (5, 9), (96, 100)])
def test_any_part_can_be_read(tmp_path: Path, entry: FileEntry, start: int, stop: int) -> None:
    target = bytearray(stop - start)
    with reader(tmp_path, entry) as file:
        file.read(start, memoryview(target))
    assert bytes(target) == DATA[start:stop]


def test_parts_in_order_read_each_block_once(tmp_path: Path, entry: FileEntry) -> None:
    with reader(tmp_path, entry) as file:
        stream, read = file._stream, []

        class Counted:
            def read_at(self, count: int, start: int) -> Any:
                read.append((start, count))
                return stream.read_at(count, start)

            def close(self) -> None:
                stream.close()

        file._stream = Counted()
        for start in range(40, 80, 4):
            file.read(start, memoryview(bytearray(4)))
    assert read == [(32, 32), (64, 32)]


def test_changed_bytes_are_found_where_they_are_read(tmp_path: Path, entry: FileEntry) -> None:
    changed = bytearray(DATA)
    changed[40] ^= 1
    (tmp_path / "file").write_bytes(changed)
    with reader(tmp_path, entry) as file:
        file.read(0, memoryview(bytearray(32)))
        wrong = r"file: its bytes from 32 to 64 are not those that were written; restore the file"
        with pytest.raises(CheckpointError, match=wrong):
            file.read(30, memoryview(bytearray(4)))
        with pytest.raises(CheckpointError, match=wrong):
            file.check()


def test_other_sizes_and_missing_files_are_told(tmp_path: Path, entry: FileEntry) -> None:
    (tmp_path / "file").write_bytes(DATA[:-1])
    with pytest.raises(CheckpointError, match=r"file: has 99 bytes, the manifest says 100; rest"):
        reader(tmp_path, entry)
    (tmp_path / "file").unlink()
    with pytest.raises(CheckpointError, match=r"file: is missing; restore .* \(--resume D@STEP\)$"):
        reader(tmp_path, entry)


def test_a_manifest_that_does_not_fit_is_told(tmp_path: Path, entry: FileEntry) -> None:
    few = entry.model_copy(update={"sha256": entry.sha256[1:]})
    with pytest.raises(CheckpointError, match=r"the manifest has 3 hashes for 4 blocks"):
        reader(tmp_path, few)
    with (
        reader(tmp_path, entry) as file,
        pytest.raises(CheckpointError, match=r"bytes 99 to 101 are asked for, of 100"),
    ):
        file.read(99, memoryview(bytearray(2)))
