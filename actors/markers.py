"""Whether the processes of a run see the same files: each leaves a marker in the run directory, and
where its checkpoints go elsewhere in their folder, and looks for the driver's."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from disagmoe.data.manifest import MANIFEST
from disagmoe.errors import StorageError
from disagmoe.storage import Location

_FOLDER = "markers"
_DRIVER = "driver"
_SEEN_WITHIN_S = 5.0
"""Network file systems may show a new file late."""
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Markers:
    """The markers of one run, in a folder that should be the same everywhere."""

    run_dir: str
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    """Tells this run's markers from those in a folder that is merely called the same."""
    checkpoints: str = ""
    """Where the run saves, if that is not in its directory."""

    @property
    def places(self) -> tuple[str, ...]:
        """The folders that should be the same everywhere."""
        return (self.run_dir, self.checkpoints) if self.checkpoints else (self.run_dir,)

    def begin(self) -> None:
        """Leave the driver's markers. Raises OSError where that is impossible."""
        for place in self.places:
            folder = _folder(place)
            if folder.is_local:  # on an object store there are no directories
                folder.make_directory()
            self._leave(place, _DRIVER)

    def meet(self, worker: str) -> str:
        """Look for the driver's markers and leave `worker`'s; return what is wrong, or ''."""
        for place in self.places:
            if problem := self._meet(place, worker):
                return problem
        return ""

    def _meet(self, place: str, worker: str) -> str:
        what = "a run directory" if place == self.run_dir else "a checkpoint.folder"
        try:
            if self._unseen(place, [_DRIVER]):
                return f"sees another {place} than the driver; name {what} that all nodes share"
            self._leave(place, worker)
        except OSError as error:
            return f"cannot write to {place}: {error.strerror or error}"
        return ""

    def unseen(self, workers: Sequence[str]) -> list[str]:
        """Return those of `workers` some of whose markers the driver does not see."""
        missing = {worker for place in self.places for worker in self._unseen(place, workers)}
        return [worker for worker in workers if worker in missing]

    def _unseen(self, place: str, workers: Sequence[str]) -> list[str]:
        missing = list(workers)
        end_s = time.monotonic() + _SEEN_WITHIN_S
        while missing := [worker for worker in missing if not self._sees(place, worker)]:
            if time.monotonic() > end_s:
                break
            time.sleep(_POLL_S)
        return missing

    def end(self) -> None:
        """Remove all markers."""
        for place in self.places:
            _folder(place).delete_directory()

    def _leave(self, place: str, name: str) -> None:
        (_folder(place) / name).write_bytes(self.token.encode())

    def _sees(self, place: str, name: str) -> bool:
        try:
            return (_folder(place) / name).read_bytes() == self.token.encode()
        except StorageError:
            return False


def _folder(place: str) -> Location:
    return Location.parse(place) / _FOLDER


def missing_data(paths: Sequence[str]) -> str:
    """Say which of the prepared data at `paths` is not to be seen from here; '' where all is."""
    unseen = [path for path in paths if not (Location.parse(path) / MANIFEST).is_file()]
    if not unseen:
        return ""
    return f"does not see the data {', '.join(unseen)}; name paths that all nodes share"
