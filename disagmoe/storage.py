"""Local paths and pyarrow.fs URIs: reading, writing whole files, listing, deleting."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs as pafs

from disagmoe.errors import StorageError

WILDCARD = re.compile(r"[*?\[]")

TEMPORARY = ".partial"
"""Ending of the name of a file that is still being written."""

_OBJECT_STORES = ("s3", "gcs", "abfs")  # as pyarrow spells them

_REASON = re.compile(r"^(?:\[Errno \d+\] )?(.*?)(?:[.:]? Detail: (?:\[errno \d+\] )?(.*))?$", re.S)


@dataclass(frozen=True, slots=True)
class Location:
    """A place on a file system: a pyarrow file system, and a path in that system's own spelling."""

    fs: Any
    path: str
    root: str = ""
    """What a URI that is not local has before the path: its scheme, with the host where the path
    does not begin with it."""
    query: str = ""
    """Query of that URI; it configures the file system (region, endpoint)."""

    @classmethod
    def parse(cls, text: str) -> "Location":
        """Read a local path or a URI such as `file:///data` or `s3://bucket/key`.

        Raises StorageError for a scheme that pyarrow.fs does not know, and for a password in a URI:
        locations are written to logs and configs.
        """
        if "://" not in text:
            return cls(pafs.LocalFileSystem(), os.path.abspath(text))
        body, mark, query = text.partition("?")
        wildcard = WILDCARD.search(body)
        stem = body[: wildcard.start()] if wildcard else body
        parts = urlsplit(stem)
        if parts.password is not None:
            shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
            raise StorageError(
                f"{shown}: holds a password, which would end up in logs; leave it out and give it "
                "as your storage asks for it (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3)"
            )
        try:
            system, path = pafs.FileSystem.from_uri(stem + mark + query)
        except (ValueError, OSError) as error:
            raise StorageError(f"{text}: not a path that pyarrow.fs can open ({error})") from error
        path = path.rstrip("/") + ("/" if stem.endswith("/") else "") + body[len(stem) :]
        if isinstance(system, pafs.LocalFileSystem):
            return cls(system, os.path.abspath(path))
        host = parts.netloc if path.startswith("/") else ""
        return cls(system, path, f"{parts.scheme}://{host}", mark + query)

    def __str__(self) -> str:
        return f"{self.root}{self.path}{self.query}"

    def __truediv__(self, name: str) -> "Location":
        return replace(self, path=f"{self.path.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """Its last part."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> "Location":
        """The directory that holds it."""
        return replace(self, path=self.path.rstrip("/").rpartition("/")[0] or "/")

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

    def is_directory(self) -> bool:
        """Whether this is a directory that exists; on an object store, one that holds something."""
        return bool(self.info().type == pafs.FileType.Directory)

    def entries(self) -> list[Any]:
        """pyarrow FileInfo of everything in this directory, by name; [] when it does not exist."""
        selector = pafs.FileSelector(self.path, allow_not_found=True)
        return sorted(self.fs.get_file_info(selector), key=lambda info: str(info.base_name))

    def names(self) -> list[str]:
        """Names in this directory, sorted; empty when it does not exist."""
        return [str(info.base_name) for info in self.entries()]

    def read_bytes(self) -> bytes:
        """The whole file; raises StorageError naming it when it cannot be read."""
        try:
            with self.fs.open_input_stream(self.path, compression=None) as stream:
                return bytes(stream.read())
        except OSError as error:
            raise StorageError(f"{self}: cannot be read ({error})") from error

    def write_bytes(self, data: bytes) -> None:
        """Write the whole file as `writing` does; raises OSError."""
        with self.writing() as stream:
            stream.write(data)

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """Yield a pyarrow stream; after the block the file is there whole and durable, after an
        exception it is not there, or is what it was before.

        Where files can be renamed it is written under a temporary name. An object store shows an
        object only when it is complete. Raises OSError where it cannot be written.
        """
        whole = self.fs.type_name in _OBJECT_STORES
        target = self if whole else self.sibling(TEMPORARY)
        try:
            with self.fs.open_output_stream(target.path, compression=None) as stream:
                yield stream
            if self.is_local:
                _sync(target.path)
            if target != self:
                self.fs.move(target.path, self.path)
            if self.is_local:
                _sync(os.path.dirname(self.path))
        except BaseException:
            with suppress(OSError):  # what failed before is what matters
                self.fs.delete_file(target.path)
            raise

    def make_directory(self) -> None:
        """Create this directory and its parents."""
        self.fs.create_dir(self.path, recursive=True)

    def delete_directory(self) -> None:
        """Delete this directory and all that is in it; a missing one is fine."""
        if self.is_directory():
            self.fs.delete_dir(self.path)


def _sync(path: str) -> None:
    """Wait until a local file, or the names in a local directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reason_of(error: OSError) -> str:
    """What went wrong in `error`, without the path and the numbers that pyarrow puts around it."""
    match = _REASON.match(str(error))
    assert match is not None
    return match[2] or match[1] or type(error).__name__
