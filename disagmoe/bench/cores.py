"""Which cores this process may use."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager


@contextmanager
def kept_to(cores: Collection[int]) -> Iterator[None]:
    """Leave this process, and what it starts in the block, `cores` alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
