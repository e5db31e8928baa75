"""One function of many values, on as many processes as are asked for."""

import gc
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any

Map = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]
"""Results in the order of the values; function and values must be picklable."""

_CHUNKS = 8
"""Of the values for each process: few enough to cost nothing, enough to end at about the same
time."""

_GARBAGE = 1_000_000
"""Objects between collections. A schedule is millions of them, none in a cycle, and to look through
them again and again takes a third of the time."""


@contextmanager
def processes(jobs: int) -> Iterator[Map]:
    """Give a map that runs on `jobs` processes, on this one alone for 1.

    More than one are started anew, not forked, so a script that uses them needs the usual
    `if __name__ == "__main__"`. They are ended when the block ends early.
    """
    if jobs == 1:
        yield lambda function, values: [function(value) for value in values]
        return
    others = set(active_children())
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin)

    def each(function: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
        given = list(values)
        chunk = max(1, len(given) // (jobs * _CHUNKS))
        return list(pool.map(function, given, chunksize=chunk))

    try:
        yield each
    except BaseException:
        for process in set(active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    # Ctrl-C reaches the whole process group; the parent alone decides what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(_GARBAGE)
