"""The machines, and how tensors travel between them."""

from typing import Literal

from pydantic import Field

from disagmoe.config.base import Section

FIRST_STEP_FACTOR = 3.0
"""How much longer the first step may take: it also fills allocators and warms up kernels."""


class ClusterConfig(Section):
    """Where workers run."""

    mode: Literal["local"] = "local"
    """`local` starts a private Ray on this machine, bound to loopback, and ends it with the run."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes CUDA where the machine has it."""
    transport: Literal["auto", "gloo", "nccl"] = "auto"
    """Library that carries tensors: `nccl` between CUDA devices, each of one worker alone; or
    `gloo`, which copies those on CUDA through host memory. `auto` takes NCCL where each
    worker has a CUDA device."""
    threads_per_worker: int = Field(default=0, ge=0)
    """Compute threads of each worker; 0 divides the machine's cores among the workers."""
    step_timeout_s: float = Field(default=600.0, gt=0)
    """Longest time that a step may take before the run ends with a report; the first step may take
    three times as long."""
    start_timeout_s: float = Field(default=180.0, gt=0)
    """Longest time for workers to start, load weights and open their channels."""

    @property
    def transfer_timeout_s(self) -> float:
        """Longest wait for one transfer.

        A receive is posted when its step begins, so it may last as long as the longest step; the
        driver's deadline for the step comes first and reports.
        """
        return FIRST_STEP_FACTOR * self.step_timeout_s
