"""Local paths and pyarrow.fs URIs: globs, atomic writes, moves."""

import fnmatch
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyarrow import fs as pafs

from disagmoe.errors import DataError

_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Location:
    """A place on a file system: a pyarrow file system, and a path in that system's own spelling."""

    fs: Any
    path: str
    scheme: str = ""
    """Scheme of a URI that is not local."""
    query: str = ""
    """Query of that URI; it configures the file system (region, endpoint)."""

    @classmethod
    def parse(cls, text: str) -> "Location":
        """Read a local path or a URI such as `file:///data` or `s3://bucket/key`.

        Raises DataError for a scheme that pyarrow.fs does not know.
        """
        if "://" not in text:
            return cls(pafs.LocalFileSystem(), os.path.abspath(text))
        body, mark, query = text.partition("?")
        wildcard = _WILDCARD.search(body)
        stem = body[: wildcard.start()] if wildcard else body
        try:
            system, path = pafs.FileSystem.from_uri(stem + mark + query)
        except (ValueError, OSError) as error:
            raise DataError(f"{text}: not a path that pyarrow.fs can open ({error})") from error
        path = path.rstrip("/") + ("/" if stem.endswith("/") else "") + body[len(stem) :]
        if isinstance(system, pafs.LocalFileSystem):
            return cls(system, os.path.abspath(path))
        return cls(system, path, text.partition("://")[0], mark + query)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path}{self.query}" if self.scheme else self.path

    def __truediv__(self, name: str) -> "Location":
        return replace(self, path=f"{self.path.rstrip('/')}/{name}")

    def sibling(self, suffix: str) -> "Location":
        """The same path with `suffix` appended to its last name."""
        return replace(self, path=self.path.rstrip("/") + suffix)

    @property
    def is_local(self) -> bool:
        """Whether files can be memory-mapped and directories renamed."""
        return isinstance(self.fs, pafs.LocalFileSystem)

    def info(self) -> Any:
        """pyarrow FileInfo of this path."""
        return self.fs.get_file_info(self.path)

    def is_file(self) -> bool:
        """Whether this is a file that exists."""
        return bool(self.info().type == pafs.FileType.File)

    def names(self) -> list[str]:
        """Names in this directory, sorted; empty when it does not exist."""
        selector = pafs.FileSelector(self.path, allow_not_found=True)
        return sorted(info.base_name for info in self.fs.get_file_info(selector))

    def read_bytes(self) -> bytes:
        """The whole file; raises DataError naming it when it cannot be read."""
        try:
            with self.fs.open_input_stream(self.path, compression=None) as stream:
                return bytes(stream.read())
        except OSError as error:
            raise DataError(f"{self}: cannot be read ({error})") from error

    def write_bytes(self, data: bytes) -> None:
        """Write the file under a temporary name, then rename it."""
        temporary = self.temporary()
        with self.fs.open_output_stream(temporary.path, compression=None) as stream:
            stream.write(data)
        self.fs.move(temporary.path, self.path)

    def temporary(self) -> "Location":
        """A name beside this one for a file that is still being written."""
        return self.sibling(f".tmp-{os.getpid()}")

    def make_directory(self) -> None:
        """Create this directory and its parents."""
        self.fs.create_dir(self.path, recursive=True)

    def delete_directory(self) -> None:
        """Delete this directory and all that is in it; a missing one is fine."""
        if self.info().type == pafs.FileType.Directory:
            self.fs.delete_dir(self.path)


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
    if not _WILDCARD.search(location.path):
        if location.info().type == pafs.FileType.Directory:
            raise DataError(
                f"--input {pattern}: is a directory; say which files, for example '{pattern}/**/*'"
            )
        return
    parts = location.path.split("/")
    first = next(i for i, part in enumerate(parts) if _WILDCARD.search(part))
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
