"""The machines, and how tensors travel between them."""

from typing import Literal

from pydantic import Field

from disagmoe.config.base import Section


class ClusterConfig(Section):
    """Where workers run."""

    mode: Literal["local"] = "local"
    """`local` starts a private Ray on this machine, bound to loopback, and ends it with the run."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes CUDA where the machine has it."""
    transport: Literal["auto", "gloo"] = "auto"
    """Library that carries tensors: `gloo`, which copies those on CUDA through host memory."""
    threads_per_worker: int = Field(default=0, ge=0)
    """Compute threads of each worker; 0 divides the machine's cores among the workers."""
    step_timeout_s: float = Field(default=600.0, gt=0)
    """Longest time a transfer or a step may take before the run ends with a report."""
    start_timeout_s: float = Field(default=180.0, gt=0)
    """Longest time for workers to start, load weights and open their channels."""
