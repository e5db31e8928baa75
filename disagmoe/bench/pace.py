"""How slow a host is that has a share of its core: as slow as a thread finds it."""

import os
import time
from functools import partial

from disagmoe.bench.quota import CpuGroup
from disagmoe.calibrate.child import in_child

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
    return in_child(
        partial(_spin, group, core),
        _TIMEOUT_S,
        late=f"a thread on core {core} has no turn within {_TIMEOUT_S:g} s",
        died="a process that only counts has died",
    )


def _spin(group: CpuGroup, core: int) -> float:
    os.sched_setaffinity(0, {core})
    group.add(os.getpid())
    os.nice(_NICENESS)
    began_s, turns = time.perf_counter(), 0
    while (seconds := time.perf_counter() - began_s) < _SPIN_S:
        turns += 1
    return turns / seconds
