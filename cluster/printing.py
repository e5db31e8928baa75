"""What Ray prints of its own accord: to the log, for stdout belongs to the script."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray._private.worker

log = logging.getLogger(__name__)

_PRINTER = "print_to_stdstream"


@contextmanager
def printing_to_log() -> Iterator[None]:
    """Log what the Ray library of this process would print while the block runs.

    A thread of it prints each death of a worker, and the raylet's warnings, to stdout, whatever
    `log_to_driver` says (Ray 2.60, _private/worker.py, listen_error_messages). Deaths are reported
    by us, and what a script prints may be read by a program.
    """
    library: Any = ray._private.worker
    before = getattr(library, _PRINTER)
    setattr(library, _PRINTER, _to_log)
    try:
        yield
    finally:
        setattr(library, _PRINTER, before)


def _to_log(data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
    """Takes what Ray's function of that name takes."""
    for line in data["lines"]:
        log.info("Ray (%s): %s", data.get("pid"), line)
