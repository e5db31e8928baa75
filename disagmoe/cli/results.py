"""Stdout is for results alone."""

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def stdout_for_results() -> Iterator[TextIO]:
    """Yield stdout; what else is printed while the block runs goes to stderr.

    A thread of Ray prints deaths of workers, whatever `log_to_driver` says, to what is stdout then.
    """
    stdout = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        yield stdout
