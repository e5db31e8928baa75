"""The machines, and how tensors travel between them."""

from typing import Literal

from pydantic import Field

from disagmoe.config.base import Section

FIRST_STEP_FACTOR = 3.0
"""How much longer the first step may take: it also fills allocators and warms up kernels."""


class SideConfig(Section):
    """Nodes of one side of the network; for `cluster.mode = "cluster"`."""

    workers_per_node: int = Field(default=0, ge=0)
    """Workers on each node; 0 takes the GPUs of the smallest node of this side, and 1 on CPU."""
    gpus_per_node: int = Field(default=0, ge=0)
    """GPUs that are reserved on each node; 0 reserves as many as have workers. Where that is all
    the node has, those without a worker lend it the network devices next to them."""
    accelerator: str = ""
    """Kind of GPU, such as `H800`: the node's `accelerator_type` in Ray and the name of the device
    that each worker sees must say so. Empty takes any."""
    label: str = ""
    """Label in Ray of the nodes of this side, such as `pool=a`; empty takes those that offer the
    resource `attention_node` or `expert_node`. That resource keeps other runs off a node; a label
    does not, where its CPUs and GPUs suffice for both."""


class ClusterConfig(Section):
    """Where workers run."""

    mode: Literal["local", "cluster"] = "local"
    """`local`: all workers on this machine; `cluster`: attention and experts on different nodes of
    the Ray cluster at `address`, which must be there: none is started."""
    address: str = ""
    """Ray to join: HOST:PORT; `auto` for the one of this machine; `local` for a private one, bound
    to loopback, that ends with the run. Empty takes the one in the environment variable
    RAY_ADDRESS, which Ray jobs have, else a private one."""
    attention: SideConfig = SideConfig()
    """Nodes of the attention workers, and of workers that have attention and experts."""
    expert: SideConfig = SideConfig()
    """Nodes of the expert workers."""
    nic_map: dict[str, list[str]] = Field(default_factory=dict)
    """Network devices of workers by name, such as `"A0.0" = ["mlx5_0"]`: RDMA devices for
    NCCL_IB_HCA; gloo binds to the first with an address. Other workers get the RDMA devices next to
    their GPU; gloo takes the address that Ray knows. For `cluster.mode = "cluster"`."""
    wait_s: float = Field(default=0.0, ge=0)
    """Longest time to wait for nodes that others use, or that have not joined the cluster yet."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes CUDA where this machine, or each side's nodes, have it."""
    transport: Literal["auto", "gloo", "nccl"] = "auto"
    """Library that carries tensors: `nccl` between CUDA devices, each of one worker alone; or
    `gloo`, which copies those on CUDA through host memory. `auto` takes NCCL where each
    worker has a CUDA device."""
    threads_per_worker: int = Field(default=0, ge=0)
    """Compute threads of each worker; 0 divides a machine's cores among its workers."""
    step_timeout_s: float = Field(default=600.0, gt=0)
    """Longest time that a step may take before the run ends with a report; the first step may take
    three times as long."""
    heartbeat_timeout_s: float = Field(default=20.0, ge=4)
    """Longest time that a worker or the driver may answer nothing, whatever it is doing, before it
    counts as failed."""
    start_timeout_s: float = Field(default=180.0, gt=0)
    """Longest time for workers to start, load weights and open their channels."""
    stop_grace_s: float = Field(default=30.0, ge=0)
    """Longest time after Ctrl-C or SIGTERM for the step under way to end and its state to be saved,
    before the workers are killed; what sends the signal must wait longer."""

    @property
    def transfer_timeout_s(self) -> float:
        """Longest wait for one transfer.

        A receive is posted when its step begins, so it may last as long as the longest step; the
        driver's deadline for the step comes first and reports.
        """
        return FIRST_STEP_FACTOR * self.step_timeout_s
