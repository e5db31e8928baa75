"""Signals that end a run: SIGTERM as an exception; both it and Ctrl-C held back for clean-up."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a process that SIGTERM has ended."""


def _in_main_thread() -> bool:
    """Python delivers signals to the main thread, and lets no other set handlers."""
    return threading.current_thread() is threading.main_thread()


class Termination:
    """Whether SIGTERM has come."""

    def __init__(self) -> None:
        self.came = False

    def look(self) -> None:
        """Raise SystemExit(143) if it has: a library may have swallowed the first one, which comes
        wherever the process happens to be."""
        if self.came:
            raise SystemExit(TERMINATED)


@contextmanager
def sigterm_raises() -> Iterator[Termination]:
    """Make SIGTERM raise SystemExit(143) inside the block, unless somebody handles it already."""
    termination = Termination()
    if not _in_main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield termination
        return

    def terminate(_: int, __: FrameType | None) -> None:
        termination.came = True
        termination.look()

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield termination
    except SystemExit as error:
        if termination.came and error.code != TERMINATED:  # Ray raises one of its own for it
            raise SystemExit(TERMINATED) from error
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def deferred() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait until the block ends: for clean-up that must be complete."""
    if not _in_main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


@contextmanager
def sigterm_handler_kept() -> Iterator[None]:
    """Put the handler of SIGTERM back after a block in which Ray installs handlers of its own.

    A SIGTERM that meets Ray's, which raise SystemExit, is handed on to the one that was there.
    """
    if not _in_main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:
        if callable(previous):
            previous(signal.SIGTERM, None)
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
