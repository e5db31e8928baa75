"""What a worker takes of memory before it has a model."""

import multiprocessing
from multiprocessing.connection import Connection, wait

from disagmoe.errors import WorkerError

_TIMEOUT_S = 120.0


def process_bytes() -> int:
    """Return the peak of the resident memory of a process that has loaded what a worker loads, and
    has multiplied two small matrices. Raises WorkerError when it dies."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_load, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        if not wait([here], _TIMEOUT_S):
            raise WorkerError(f"a process loads torch and Ray for more than {_TIMEOUT_S:g} s")
        found = int(here.recv())
    except EOFError:
        raise WorkerError("a process that only loads torch and Ray has died") from None
    finally:
        here.close()
        process.join(5)
        process.kill()
        process.join()
    return found


def device_bytes() -> int:
    """Return what context and libraries take of this process's CUDA device: what is neither free
    nor held by torch's allocator. Others on the device count as well."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free - torch.cuda.memory_reserved())


def _load(pipe: Connection) -> None:
    import torch

    import disagmoe.actors.worker  # noqa: F401 - to see what it takes
    from disagmoe.runtime.memory import peak_memory_bytes

    torch.set_num_threads(1)
    one = torch.zeros(64, 64, dtype=torch.bfloat16)
    torch.mm(one, one)
    pipe.send(peak_memory_bytes(torch.device("cpu")))
