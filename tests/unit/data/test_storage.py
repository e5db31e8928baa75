import hashlib
import io
from pathlib import Path

import pytest

from disagmoe.data.storage import HashingSink, find_files
from disagmoe.errors import DataError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a.py", "b.txt", "sub/c.py", "sub/deep/d.py", "sub/test/e.py", ".hidden/f.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def _found(tree: Path, patterns: list[str], excludes: list[str] | None = None) -> list[str]:
    files = find_files([f"{tree}/{pattern}" for pattern in patterns], excludes or [])
    return [file.location.path.removeprefix(f"{tree}/") for file in files]


def test_globs_match_like_the_shell(tree: Path) -> None:
    everything = ["a.py", "sub/c.py", "sub/deep/d.py", "sub/test/e.py"]
    assert _found(tree, ["**/*.py"]) == everything
    assert _found(tree, ["*.py"]) == ["a.py"]
    assert _found(tree, ["*/*.py"]) == ["sub/c.py"]
    assert _found(tree, ["sub/**"]) == everything[1:]
    assert _found(tree, ["?.[pt]*"]) == ["a.py", "b.txt"]
    assert _found(tree, [".hidden/*"]) == [".hidden/f.py"]
    assert _found(tree, ["b.txt"]) == ["b.txt"]


def test_files_are_sorted_and_each_comes_once(tree: Path) -> None:
    assert _found(tree, ["sub/*.py", "**/c.py", "a.py"]) == ["a.py", "sub/c.py"]


def test_excludes_match_the_whole_path(tree: Path) -> None:
    assert _found(tree, ["**/*.py"], ["*/test/*", "*/a.py"]) == ["sub/c.py", "sub/deep/d.py"]


def test_links_to_directories_are_not_followed_by_two_stars(tree: Path) -> None:
    (tree / "sub" / "loop").symlink_to(tree)
    assert _found(tree, ["**/a.py"]) == ["a.py"]


def test_file_uri_is_the_same_as_a_path(tree: Path) -> None:
    (by_uri,) = find_files([f"file://{tree}/a*"], [])
    (by_path,) = find_files([f"{tree}/a.py"], [])
    assert by_uri == by_path
    assert by_path.size_bytes == 4


def test_what_matches_nothing_is_named(tree: Path) -> None:
    with pytest.raises(DataError, match=r"--input .*\*.rs: no file matches"):
        find_files([f"{tree}/*.py", f"{tree}/*.rs"], [])
    with pytest.raises(DataError, match=r"--input .*missing.txt: no file matches"):
        find_files([f"{tree}/missing.txt"], [])
    with pytest.raises(DataError, match=r"all 2 input files are excluded by --exclude"):
        find_files([f"{tree}/*"], ["*"])
    with pytest.raises(DataError, match=r"is a directory; say which files, for example '.*/\*\*/"):
        find_files([f"{tree}/sub"], [])


def test_sink_hashes_what_it_passes_on() -> None:
    target = io.BytesIO()
    sink = HashingSink(target)
    assert sink.write(b"ab") == 2
    sink.write(memoryview(b"cd"))
    assert target.getvalue() == b"abcd"
    assert sink.tell() == sink.size_bytes == 4
    assert sink.sha256() == hashlib.sha256(b"abcd").hexdigest()
