"""A pool of fresh processes that notices a dead one and ends at once on an interrupt."""

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from disagmoe.errors import DisagMoEError, WorkerError

Job = TypeVar("Job")
Result = TypeVar("Result")


def map_unordered(
    start: Callable[..., Callable[[Job], Result]],
    arguments: tuple[Any, ...],
    jobs: Sequence[Job],
    processes: int,
) -> Generator[Result]:
    """Yield the result of each job as it is done.

    Each process calls `start(*arguments)` once, and what that returns on each of its jobs. An error
    of this package in a process is raised here; any other end of a process raises WorkerError.
    Processes are spawned, because a fork of a program with threads may lock up, and are gone when
    this generator is closed.
    """
    todo = iter(jobs)
    workers: dict[Connection, SpawnProcess] = {}
    try:
        for job in _take(todo, min(processes, len(jobs))):
            connection, process = _spawn()
            workers[connection] = process
            _send(connection, process, (start, arguments))
            _send(connection, process, job)
        while workers:
            for ready in wait(list(workers)):
                assert isinstance(ready, Connection)
                yield _receive(ready, workers[ready])
                job_left = next(todo, None)
                if job_left is not None:
                    _send(ready, workers[ready], job_left)
                else:
                    process = workers.pop(ready)
                    ready.close()
                    process.join()
    finally:
        for connection, process in workers.items():
            process.terminate()
            process.join()
            connection.close()


def _take(items: Iterator[Job], count: int) -> Iterator[Job]:
    for _ in range(count):
        yield next(items)


def _spawn() -> tuple[Connection, SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    # told of its work over the connection: multiprocessing hands arguments over in a pipe that it
    # holds open at both ends, so more than fits in there would wait for a dead process for ever
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _send(connection: Connection, process: SpawnProcess, job: Any) -> None:
    try:
        connection.send(job)
    except ConnectionError:
        raise _ended(process) from None


def _receive(connection: Connection, process: SpawnProcess) -> Any:
    try:
        kind, value = connection.recv()
    except (EOFError, ConnectionError):
        raise _ended(process) from None
    if kind == "error":
        raise value
    return value


def _ended(process: SpawnProcess) -> WorkerError:
    process.join()
    return WorkerError(
        f"a process of the pool ended with exit code {process.exitcode} in the middle of its work "
        "(-9 often means that memory ran out); run the command again to go on with what is "
        "finished, with fewer --processes if memory is short; 1 when a script starts means that "
        'it lacks `if __name__ == "__main__":` around what starts the pool'
    )


def _serve(connection: Connection) -> None:
    # Ctrl-C reaches the whole process group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The parent may be gone: then there is nobody left to tell.
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            start, arguments = connection.recv()
            work = start(*arguments)
            while True:
                connection.send(("result", work(connection.recv())))
        except DisagMoEError as error:
            connection.send(("error", error))
