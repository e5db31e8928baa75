"""What must be measured in a process of its own: one task, one answer, a deadline."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from disagmoe.errors import WorkerError

T = TypeVar("T")


def in_child(task: Callable[[], T], timeout_s: float, *, late: str, died: str) -> T:
    """Return what `task`, which is picklable, returns in a new process.

    Raises:
        WorkerError: it takes longer than `timeout_s`, with the text `late`; or its process dies,
            with `died`.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, task), daemon=True)
    process.start()
    there.close()
    try:
        if not here.poll(timeout_s):
            raise WorkerError(late)
        found: T = here.recv()
    except EOFError:
        raise WorkerError(died) from None
    finally:
        here.close()
        process.join(5)
        process.kill()
        process.join()
    return found


def _answer(pipe: Connection, task: Callable[[], T]) -> None:
    pipe.send(task())
