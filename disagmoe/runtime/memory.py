"""What a worker's memory holds, beside what the plan says of it; shown when it does not suffice."""

import os
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from disagmoe.costs.memory import MemoryUse, memory_use
from disagmoe.costs.scenario import scenario_of
from disagmoe.errors import ConfigError, WorkerError
from disagmoe.runtime.context import Context
from disagmoe.runtime.parameters import Parameters
from disagmoe.runtime.update import Update
from disagmoe.schedule.ir import GroupProgram
from disagmoe.units import KIB, format_bytes

_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Bytes of one worker, at the fullest moment so far."""

    weights: int
    gradients: int
    optimizer: int
    peak: int
    """Of all tensors on CUDA, of the whole process on CPU."""
    unused: int = 0
    """What torch's allocator holds beyond tensors: fragments, and what is free for others."""
    system: int = 0
    """What the device and its libraries take, and other processes on it."""
    capacity: int = 0
    """Of the device; 0 where that is not known."""

    @property
    def rest(self) -> int:
        """Activations, messages and temporaries."""
        return max(0, self.peak - self.weights - self.gradients - self.optimizer)

    @property
    def total(self) -> int:
        """All of it."""
        return self.peak + self.unused + self.system


def peak_memory_bytes(device: torch.device) -> int:
    """Largest memory so far: of the device on CUDA, else resident memory of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def available_memory_bytes() -> int:
    """Memory of this machine that processes can still take, as far as this container may (Linux,
    proc_meminfo(5) and cgroup v2; elsewhere all that the machine has)."""
    try:
        fields = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * KIB
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit, used = ((_CGROUP / f"memory.{name}").read_text() for name in ("max", "current"))
    except OSError:  # no container, or an older one
        return free
    return free if limit.strip() == "max" else min(free, max(0, int(limit) - int(used)))


def measure(parameters: Parameters, update: Update, device: torch.device) -> Measured:
    """Return what this worker holds; asks the device for nothing that is queued."""
    segments = parameters.segments.values()
    states = update.optimizer.states.values()
    optimizer = [t for s in states for t in (s.master, s.exp_avg, s.exp_avg_sq)]
    weights = [segment.flat_value for segment in segments]
    held = {value.untyped_storage().data_ptr() for value in weights}
    # master weights are the weights themselves where both have one type
    own = [t for t in optimizer if t.untyped_storage().data_ptr() not in held]
    peak = peak_memory_bytes(device)
    unused = system = capacity = 0
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device)
        free, capacity = torch.cuda.mem_get_info(device)
        unused = max(0, torch.cuda.max_memory_reserved(device) - peak)
        system = capacity - free - reserved
    return Measured(
        weights=_nbytes(weights),
        gradients=_nbytes(segment.flat_grad for segment in segments),
        optimizer=_nbytes(own),
        peak=peak,
        unused=unused,
        system=system,
        capacity=capacity,
    )


def _nbytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def predict(context: Context, program: GroupProgram) -> MemoryUse | None:
    """Return what the plan says of this worker; None where no machine of its precision is known."""
    try:
        scenario = scenario_of(context.config, context.layout)
    except ConfigError:
        return None
    return memory_use(scenario, context.worker, program)


def memory_table(predicted: MemoryUse | None, measured: Measured) -> str:
    """Return both as a table, one kind of memory per line."""
    weights = gradients = optimizer = rest = system = headroom = total = None
    if predicted is not None:
        weights, gradients, optimizer = predicted.weights, predicted.gradients, predicted.optimizer
        rest = predicted.slots + predicted.workspace + predicted.head
        system, headroom, total = predicted.system, predicted.headroom, predicted.total
    lines = [
        _line("weights", weights, measured.weights),
        _line("gradient sums", gradients, measured.gradients),
        _line("optimizer", optimizer, measured.optimizer),
        _line("activations, messages, temporaries", rest, measured.rest),
        _line("more tokens at one worker", headroom, None),
        _line("held by torch, not in use", None, measured.unused),
        _line("device and libraries", system, measured.system),
        _line("total", total, measured.total),
    ]
    if measured.capacity:
        lines.append(_line("there is", None, measured.capacity))
    return "\n".join(
        [f"{'bytes at the fullest moment':<36} {'predicted':>10} {'measured':>10}", *lines]
    )


def _line(name: str, predicted: float | None, measured: float | None) -> str:
    cells = ["-" if value is None else format_bytes(value) for value in (predicted, measured)]
    return f"{name:<36} {cells[0]:>10} {cells[1]:>10}"


def is_out_of_memory(error: BaseException) -> bool:
    """Python's own, CUDA's, and that of torch's allocator on CPU, which has no type."""
    return (
        isinstance(error, (MemoryError, torch.OutOfMemoryError))
        or "not enough memory" in str(error)
        or "can't allocate memory" in str(error)
    )


@contextmanager
def memory_explained(table: Callable[[], str]) -> Iterator[None]:
    """Add `table` to a WorkerError, which names the instruction, if memory was its cause."""
    try:
        yield
    except WorkerError as error:
        cause = error.__cause__
        if cause is None or not is_out_of_memory(cause):
            raise
        raise WorkerError(f"{error}\n{table()}") from cause
