"""All workers of a run as threads of this process, over the in-process transport.

For tests and `disagmoe invariance`: the same runtime as in a cluster, without processes or sockets.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from disagmoe.config.run import RunConfig
from disagmoe.data.source import BatchSource
from disagmoe.runtime.context import Context
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.schedule.from_config import compile_for
from disagmoe.schedule.layout import Side, Worker
from disagmoe.storage import Location
from disagmoe.transport.inproc import InprocHub

T = TypeVar("T")


class ThreadedRun:
    """Every worker of a resolved config, driven in lockstep."""

    def __init__(
        self,
        config: RunConfig,
        source: BatchSource,
        *,
        checkpoints: Location | None = None,
        timeout_s: float = 60.0,
        device: torch.device | None = None,
    ) -> None:
        """All workers compute on `device`, by default the CPU."""
        train, evaluation = compile_for(config)
        layout = train.programs.spec.layout
        self.hub = InprocHub([str(worker) for worker in layout.workers], timeout_s)
        self.workers = {
            worker: WorkerRuntime(
                Context(config, train.programs.spec, worker, device or torch.device("cpu")),
                train.programs.part(worker.group),
                None if evaluation is None else evaluation.programs.part(worker.group),
                self.hub.transport(str(worker)),
                None if worker.group.side is Side.EXPERT else source,
                checkpoints,
            )
            for worker in layout.workers
        }
        self._pool = ThreadPoolExecutor(len(self.workers))
        try:
            self.each(lambda runtime: runtime.connect())
        except BaseException:
            self.close()
            raise

    def each(self, action: Callable[[WorkerRuntime], T]) -> dict[Worker, T]:
        """Let all workers do `action` together. Raises the first failure after all have ended."""
        first: list[BaseException] = []
        lock = threading.Lock()

        def guarded(worker: Worker, runtime: WorkerRuntime) -> T | None:
            try:
                return action(runtime)
            except BaseException as error:  # noqa: BLE001 - raised by `each` in the caller's thread
                with lock:
                    first.append(error)
                self.hub.fail(str(worker), str(error))
                return None

        futures = {
            worker: self._pool.submit(guarded, worker, runtime)
            for worker, runtime in self.workers.items()
        }
        results = {worker: future.result() for worker, future in futures.items()}
        if first:
            raise first[0]
        return results  # type: ignore[return-value]  # None stands only for failures, raised above

    def close(self) -> None:
        """End the threads."""
        for runtime in self.workers.values():
            runtime.close()
        self._pool.shutdown()
