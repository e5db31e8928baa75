"""Processes below this one: their memory, and that none outlives the run."""

import threading
from collections.abc import Callable
from contextlib import suppress

import ray  # noqa: F401 - makes its own copy of psutil importable, in ray/thirdparty_files

# isort: split
import psutil

_SAMPLE_EVERY_S = 0.5


def tree_rss_bytes(root: int) -> int:
    """Return the resident memory of process `root` and all below it.

    Pages that several of them share are counted once for each, so this is an upper bound.
    """
    total = 0
    for process in tree(root):
        try:
            total += process.memory_info().rss
        except psutil.Error:  # it has just ended
            continue
    return total


def tree(root: int) -> list[psutil.Process]:
    """Return process `root` and all below it; none when it has ended."""
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


class PeakMemory:
    """Largest `tree_rss_bytes` of a process while a block runs, by samples."""

    def __init__(self, root: int, every_s: float = _SAMPLE_EVERY_S) -> None:
        self._root = root
        self._every_s = every_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)
        self.peak_bytes = 0

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, tree_rss_bytes(self._root))
            if self._done.wait(self._every_s):
                return


def children_that_mention(text: str) -> list[psutil.Process]:
    """Return the children of this process with `text` in their command line, and all below them."""
    found = []
    for child in psutil.Process().children():
        try:
            if any(text in argument for argument in child.cmdline()):
                found += [child, *child.children(recursive=True)]
        except psutil.Error:
            continue
    return found


def end_survivors(processes: list[psutil.Process], patience_s: float) -> None:
    """Ask those of `processes` that have not ended to end, with SIGTERM; kill those that have not
    within `patience_s`."""
    _each(processes, psutil.Process.terminate)
    _, alive = psutil.wait_procs(processes, timeout=patience_s)
    _each(alive, psutil.Process.kill)
    psutil.wait_procs(alive, timeout=patience_s)


def _each(processes: list[psutil.Process], end: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            end(process)
