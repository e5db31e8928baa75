"""How slow a host is that has a share of its core: as slow as a thread finds it."""

import multiprocessing
import os
import time
from multiprocessing.connection import Connection, wait

from disagmoe.bench.quota import CpuGroup
from disagmoe.errors import WorkerError

_SPIN_S = 3.0
_TIMEOUT_S = 60.0
_NICENESS = 15
"""Ray's of its workers, whatever it does for itself beside them."""


def slowdown(group: CpuGroup, core: int, cores: float) -> float:
    """Return how many times as long a thread in `group` takes on `core` when the group has `cores`
    of it as when it has all of it. What else is in the group takes as much as before, and so a
    larger share. The group has no limit afterwards.

    Raises:
        WorkerError: the process of the thread dies.
    """
    group.limit(None)
    whole = _turns_per_s(group, core)
    group.limit(cores)
    try:
        return whole / _turns_per_s(group, core)
    finally:
        group.limit(None)


def _turns_per_s(group: CpuGroup, core: int) -> float:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_spin, args=(there, group, core), daemon=True)
    process.start()
    there.close()
    try:
        if not wait([here], _TIMEOUT_S):
            raise WorkerError(f"a thread on core {core} has no turn within {_TIMEOUT_S:g} s")
        found = float(here.recv())
    except EOFError:
        raise WorkerError("a process that only counts has died") from None
    finally:
        here.close()
        process.join(5)
        process.kill()
        process.join()
    return found


def _spin(pipe: Connection, group: CpuGroup, core: int) -> None:
    os.sched_setaffinity(0, {core})
    group.add(os.getpid())
    os.nice(_NICENESS)
    began_s, turns = time.perf_counter(), 0
    while (seconds := time.perf_counter() - began_s) < _SPIN_S:
        turns += 1
    pipe.send(turns / seconds)
