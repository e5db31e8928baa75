from pathlib import Path

from pyarrow import fs as pafs

from disagmoe.data.workdir import publish, working_directory
from disagmoe.storage import Location


def _store(tmp_path: Path) -> Location:
    """A file system whose directories are not renamed, as on an object store."""
    return Location(pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "out", "test")


def _working(tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    for name in ("manifest.json", "tokenizer.json", "shard-00000.arrow", "shard-00000.json"):
        (tmp_path / "out.partial" / name).write_text(name)
    (tmp_path / "out.partial" / "shard-00000.arrow.tmp-7").touch()


def test_only_finished_files_are_published(tmp_path: Path) -> None:
    for out in (Location.parse(str(tmp_path / "a" / "out")), _store(tmp_path / "b")):
        base = tmp_path / ("a" if out.is_local else "b")
        base.mkdir()
        _working(base)
        publish(working_directory(out), out)
        assert [path.name for path in base.iterdir()] == ["out"]
        assert {path.name: path.read_text() for path in (base / "out").iterdir()} == {
            name: name for name in ("manifest.json", "tokenizer.json", "shard-00000.arrow")
        }


def test_publishing_by_single_files_goes_on_after_an_interrupt(tmp_path: Path) -> None:
    _working(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out.partial" / "shard-00000.arrow").rename(tmp_path / "out" / "shard-00000.arrow")
    out = _store(tmp_path)
    publish(working_directory(out), out)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == [
        "manifest.json",
        "shard-00000.arrow",
        "tokenizer.json",
    ]
