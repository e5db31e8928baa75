"""Input files by glob, and a hash of what is written."""

import fnmatch
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyarrow import fs as pafs

from disagmoe.errors import DataError
from disagmoe.storage import WILDCARD, Location


class HashingSink:
    """A file object that passes bytes on to a pyarrow stream and hashes them on the way."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self.size_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Write and hash; returns the number of bytes."""
        view = memoryview(data).cast("B")
        self._stream.write(view)
        self._hash.update(view)
        self.size_bytes += len(view)
        return len(view)

    def tell(self) -> int:
        """Bytes written so far."""
        return self.size_bytes

    def flush(self) -> None:
        """Pass on what is buffered."""
        self._stream.flush()

    def close(self) -> None:
        """Close for the writer above; the stream below belongs to its opener."""
        self.closed = True

    def sha256(self) -> str:
        """Hex digest of all bytes so far."""
        return self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class SourceFile:
    """An input file as it was found."""

    location: Location
    size_bytes: int
    mtime_ns: int


def find_files(patterns: list[str], excludes: list[str]) -> list[SourceFile]:
    """Files that match any of `patterns` and none of `excludes`, sorted by path, each once.

    In `patterns`, `*`, `?` and `[..]` match inside one name and `**` matches any number of
    directories; names that start with a dot need a pattern that does so too. An exclude is matched
    against the whole path, and its `*` also matches `/`. Raises DataError for a pattern that
    matches nothing, or when the excludes leave nothing.
    """
    found: dict[str, Location] = {}
    for pattern in patterns:
        matches = list(_expand(pattern))
        if not matches:
            raise DataError(f"--input {pattern}: no file matches")
        found |= {str(match): match for match in matches}
    kept = {
        name: location
        for name, location in found.items()
        if not any(fnmatch.fnmatchcase(name, exclude) for exclude in excludes)
    }
    if not kept:
        raise DataError(f"all {len(found)} input files are excluded by --exclude")
    return [_source_file(kept[name]) for name in sorted(kept)]


def _source_file(location: Location) -> SourceFile:
    info = location.info()
    return SourceFile(location, int(info.size), int(info.mtime_ns or 0))


def _expand(pattern: str) -> Iterator[Location]:
    location = Location.parse(pattern)
    if location.is_file():
        yield location
        return
    if not WILDCARD.search(location.path):
        if location.info().type == pafs.FileType.Directory:
            raise DataError(
                f"--input {pattern}: is a directory; say which files, for example '{pattern}/**/*'"
            )
        return
    parts = location.path.split("/")
    first = next(i for i, part in enumerate(parts) if WILDCARD.search(part))
    base = replace(location, path="/".join(parts[:first]) or "/")
    yield from _walk(base, parts[first:])


def _walk(base: Location, segments: list[str]) -> Iterator[Location]:
    """Files under `base` whose remaining path matches `segments`."""
    head, rest = segments[0], segments[1:]
    if head == "**":
        yield from _walk(base, rest or ["*"])
    for info in _listing(base):
        child = base / info.base_name
        is_directory = info.type == pafs.FileType.Directory
        if head == "**":
            # A link to a directory may lead back up; like the shell, `**` does not follow it.
            follow = is_directory and not (child.is_local and os.path.islink(child.path))
            if follow and not info.base_name.startswith("."):
                yield from _walk(child, segments)
        elif _name_matches(info.base_name, head):
            if rest and is_directory:
                yield from _walk(child, rest)
            elif not rest and not is_directory:
                yield child


def _listing(base: Location) -> list[Any]:
    try:
        return list(base.fs.get_file_info(pafs.FileSelector(base.path, allow_not_found=True)))
    except OSError as error:
        raise DataError(f"{base}: cannot be listed ({error})") from error


def _name_matches(name: str, pattern: str) -> bool:
    hidden = name.startswith(".") and not pattern.startswith(".")
    return not hidden and fnmatch.fnmatchcase(name, pattern)
