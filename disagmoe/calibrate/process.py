"""What a worker takes of memory before it has a model."""

from disagmoe.calibrate.child import in_child

_TIMEOUT_S = 120.0


def process_bytes() -> int:
    """Return the peak of the resident memory of a process that has loaded what a worker loads, and
    has multiplied two small matrices. Raises WorkerError when it dies."""
    return in_child(
        _load,
        _TIMEOUT_S,
        late=f"a process loads torch and Ray for more than {_TIMEOUT_S:g} s",
        died="a process that only loads torch and Ray has died",
    )


def device_bytes() -> int:
    """Return what context and libraries take of this process's CUDA device: what is neither free
    nor held by torch's allocator. Others on the device count as well."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free - torch.cuda.memory_reserved())


def _load() -> int:
    import torch

    import disagmoe.actors.worker  # noqa: F401 - to see what it takes
    from disagmoe.runtime.memory import peak_memory_bytes

    torch.set_num_threads(1)
    one = torch.zeros(64, 64, dtype=torch.bfloat16)
    torch.mm(one, one)
    return peak_memory_bytes(torch.device("cpu"))
