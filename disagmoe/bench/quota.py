"""A share of a core for a group of processes: cgroups, version 1 or 2."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from disagmoe.bench.hosts import abandoned
from disagmoe.errors import PlacementError

CGROUPS = Path("/sys/fs/cgroup")
_PERIOD_US = 20_000
"""Short against an op of a micro-batch, so that a quota looks like a slower core."""


class CpuGroup:
    """A cgroup that processes join by themselves, and whose quota can change while they run."""

    def __init__(self, folder: Path, *, unified: bool) -> None:
        self._folder = folder
        self._unified = unified

    @property
    def join(self) -> str:
        """Shell command with which a process joins, before it starts anything."""
        return f"echo $$ > {self._folder / 'cgroup.procs'}"

    def add(self, process: int) -> None:
        """Let a process that runs already join."""
        _write(self._folder / "cgroup.procs", str(process))

    def limit(self, cores: float | None) -> None:
        """Give the group `cores` cores (0.5: half of one); None lifts the limit."""
        quota = None if cores is None else round(cores * _PERIOD_US)
        if self._unified:
            value = "max" if quota is None else str(quota)
            _write(self._folder / "cpu.max", f"{value} {_PERIOD_US}")
        else:
            _write(self._folder / "cpu.cfs_period_us", str(_PERIOD_US))
            _write(self._folder / "cpu.cfs_quota_us", str(-1 if quota is None else quota))


@contextmanager
def cpu_group(name: str, root: Path = CGROUPS) -> Iterator[CpuGroup]:
    """Make the cgroup `name`; it is removed with the block, when its processes have ended.

    Raises PlacementError where cgroups do not limit CPU time, or this process may not make one.
    """
    unified = (root / "cgroup.controllers").is_file()
    base = root if unified else root / "cpu"
    if not base.is_dir():
        raise PlacementError(f"{base} is missing: this machine has no CPU cgroups; run as root")
    for left in abandoned(entry.name for entry in base.iterdir()):
        _remove(base / left)
    folder = base / name
    try:
        folder.mkdir(exist_ok=True)
        if unified and "cpu" not in (root / "cgroup.subtree_control").read_text().split():
            _write(root / "cgroup.subtree_control", "+cpu")
    except OSError as error:
        raise PlacementError(f"cannot make the cgroup {folder}: {error.strerror}") from error
    try:
        yield CpuGroup(folder, unified=unified)
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """One with processes in it cannot be removed, and is left; it limits nobody else."""
    try:
        folder.rmdir()
    except OSError:
        return


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise PlacementError(f"cannot write '{text}' to {file}: {error.strerror}") from error
