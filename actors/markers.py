"""Whether the processes of a run see the same files: each leaves a marker in the run directory and
looks for the driver's."""

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

    @property
    def _folder(self) -> Location:
        return Location.parse(self.run_dir) / _FOLDER

    def begin(self) -> None:
        """Leave the driver's marker. Raises OSError where that is impossible."""
        self._folder.make_directory()
        self._leave(_DRIVER)

    def meet(self, worker: str) -> str:
        """Look for the driver's marker and leave that of `worker`; return what is wrong, or ''."""
        try:
            if self.unseen([_DRIVER]):
                return (
                    f"sees another {self.run_dir} than the driver; name a run directory that all "
                    "nodes share"
                )
            self._leave(worker)
        except OSError as error:
            return f"cannot write to {self.run_dir}: {error.strerror or error}"
        return ""

    def unseen(self, workers: Sequence[str]) -> list[str]:
        """Return those of `workers` whose markers the driver does not see."""
        missing = list(workers)
        end_s = time.monotonic() + _SEEN_WITHIN_S
        while missing := [worker for worker in missing if not self._sees(worker)]:
            if time.monotonic() > end_s:
                break
            time.sleep(_POLL_S)
        return missing

    def end(self) -> None:
        """Remove all markers."""
        self._folder.delete_directory()

    def _leave(self, name: str) -> None:
        (self._folder / name).write_bytes(self.token.encode())

    def _sees(self, name: str) -> bool:
        try:
            return (self._folder / name).read_bytes() == self.token.encode()
        except StorageError:
            return False


def missing_data(paths: Sequence[str]) -> str:
    """Say which of the prepared data at `paths` is not to be seen from here; '' where all is."""
    unseen = [path for path in paths if not (Location.parse(path) / MANIFEST).is_file()]
    if not unseen:
        return ""
    return f"does not see the data {', '.join(unseen)}; name paths that all nodes share"
