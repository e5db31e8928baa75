"""Signals that end a run: SIGTERM as an exception; both it and Ctrl-C held back for clean-up."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a process that SIGTERM has ended."""

_INSTALLER = "set_sigterm_handler"


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
    """Keep the handler of SIGTERM in a block in which Ray starts: it is called at the end of the
    block, or at the second signal. Where there is none, Ray's is there in the block alone.

    Ray's own handlers raise SystemExit wherever the process happens to be. Where nothing can come
    of an exception, in a destructor say, the signal is lost and the run goes on, and a Ray that
    is half started may crash the process at its end.
    """
    kept = signal.getsignal(signal.SIGTERM)
    if not _in_main_thread() or not callable(kept):
        try:
            yield
        finally:
            if _in_main_thread():
                signal.signal(signal.SIGTERM, kept)
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        # Ray has a handler below Python as well, which calls this one, but has the process aborted
        # 3 s later (Abseil's alarm_on_failure_secs)
        signal.alarm(0)
        if len(came) > 1:
            kept(number, frame)

    signal.signal(signal.SIGTERM, note)
    try:
        with _no_handlers_of_ray():
            yield
    finally:
        signal.signal(signal.SIGTERM, kept)
        if len(came) == 1:
            kept(signal.SIGTERM, None)


@contextmanager
def _no_handlers_of_ray() -> Iterator[None]:
    """Ray installs those of this process by one function (2.60, _private/utils.py)."""
    import ray._private.utils  # here: commands that need no Ray use this module as well

    library: Any = ray._private.utils
    before = getattr(library, _INSTALLER)
    setattr(library, _INSTALLER, lambda _: None)
    try:
        yield
    finally:
        setattr(library, _INSTALLER, before)
