"""A side of a comparison in a process of its own, which sleeps while others are measured."""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

from disagmoe.errors import WorkerError

_END_S = 10.0


@dataclass(frozen=True, slots=True)
class Learned:
    """What a step tells of what it did."""

    loss: float
    grad_norm: float
    """Before clipping."""


class Trainee(Protocol):
    """A whole training in one process."""

    def step(self, step: int, micro_batch_size: int) -> Learned:
        """Do optimizer step `step`, from 0, in micro-batches of so many sequences."""
        ...


@dataclass(frozen=True, slots=True)
class Timed:
    """A step."""

    elapsed_s: float
    learned: Learned


class Apart:
    """A trainee that `make` builds in a process with `threads` compute threads."""

    def __init__(self, name: str, make: Callable[[], Trainee], threads: int) -> None:
        """`make` must be picklable. Returns at once; the first step waits for the start."""
        context = multiprocessing.get_context("spawn")
        self._name = name
        self._steps = 0
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, threads), daemon=True)
        self._process.start()
        theirs.close()

    def step(self, micro_batch_size: int) -> Timed:
        """Do the next step. Raises WorkerError when it fails or the process dies."""
        try:
            self._ours.send((self._steps, micro_batch_size))
            answer = self._ours.recv()
        except (EOFError, OSError) as error:
            self._process.join(_END_S)
            raise WorkerError(
                f"{self._name}: its process has ended with code {self._process.exitcode}"
            ) from error
        if isinstance(answer, str):
            raise WorkerError(f"{self._name}: {answer}")
        self._steps += 1
        assert isinstance(answer, Timed)
        return answer

    def close(self) -> None:
        """End the process."""
        self._ours.close()
        self._process.join(_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(calls: Connection, make: Callable[[], Trainee], threads: int) -> None:
    # torch takes seconds to import, and this file is imported by who only wants `Timed`
    import torch

    torch.set_num_threads(threads)
    trainee: Trainee | None = None
    while True:
        try:
            step, micro_batch_size = calls.recv()
        except EOFError:
            return
        try:
            trainee = trainee or make()
            began_s = time.perf_counter()
            learned = trainee.step(step, micro_batch_size)
            calls.send(Timed(time.perf_counter() - began_s, learned))
        except Exception as error:  # noqa: BLE001 - it is raised again by who asked
            calls.send(f"{type(error).__name__}: {error}")
