import os
from pathlib import Path

import pytest
from pyarrow import fs as pafs

from disagmoe.errors import StorageError
from disagmoe.storage import Location, reason_of


def test_unknown_scheme_is_refused() -> None:
    with pytest.raises(StorageError, match=r"nope://x/y: not a path that pyarrow.fs can open"):
        Location.parse("nope://x/y")


def test_remote_names_can_be_read_back() -> None:
    location = Location.parse("mock:///bucket/dir*") / "name"
    assert str(location) == "mock://bucket/dir*/name"
    assert not location.is_local


def test_write_is_by_rename_and_leaves_nothing_else(tmp_path: Path) -> None:
    place = Location.parse(str(tmp_path)) / "file"
    place.write_bytes(b"old")
    place.write_bytes(b"new")
    assert place.read_bytes() == b"new"
    assert place.sibling("").path == place.path
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"gone: cannot be read"):
        (Location.parse(str(tmp_path)) / "gone").read_bytes()


def test_a_host_stays_in_front_of_an_absolute_path() -> None:
    place = Location(pafs.LocalFileSystem(), "/data/a", "hdfs://namenode:8020", "?user=x")
    assert str(place / "b") == "hdfs://namenode:8020/data/a/b?user=x"


def test_a_password_in_a_uri_is_refused_and_not_repeated() -> None:
    with pytest.raises(StorageError, match=r"^s3://bucket/key: holds a password") as raised:
        Location.parse("s3://me:secret@bucket/key")
    assert "secret" not in str(raised.value)


def test_names_and_parents(tmp_path: Path) -> None:
    place = Location.parse(str(tmp_path / "a/b"))
    place.make_directory()
    assert (place.name, str(place.parent), place.is_directory()) == ("b", f"{tmp_path}/a", True)
    assert [info.base_name for info in place.parent.entries()] == place.parent.names() == ["b"]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    place = Location.parse(str(tmp_path)) / "file"
    place.write_bytes(b"old")

    def fail() -> None:
        with place.writing() as stream:
            stream.write(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert place.read_bytes() == b"old"
    assert place.parent.names() == ["file"]


def test_a_full_disk_is_told_in_few_words(tmp_path: Path) -> None:
    os.symlink("/dev/full", tmp_path / "file.partial")
    with pytest.raises(OSError, match="No space left") as raised:
        (Location.parse(str(tmp_path)) / "file").write_bytes(b"x")
    assert reason_of(raised.value) == "No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_reasons_without_details_are_kept_whole() -> None:
    assert reason_of(OSError("When reading: AWS Error NO_SUCH_KEY")).startswith("When reading: AWS")
    assert reason_of(OSError()) == "OSError"
