"""How the cores and GPUs of a machine are divided among workers."""

import os

from disagmoe.config.run import RunConfig


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worker_count(config: RunConfig) -> int:
    """Workers of all groups."""
    return config.parallel.workers


def threads_per_worker(config: RunConfig, cores: int) -> int:
    """Compute threads of each worker: as configured, or an equal share of `cores`, at least 1."""
    return config.cluster.threads_per_worker or max(1, cores // worker_count(config))


def gpus_per_worker(config: RunConfig, gpus: int) -> float:
    """Share of a GPU that each worker takes: 0 on CPU, at most 1, and such that all fit `gpus`.

    Workers share a GPU where there are more of them.
    """
    if config.cluster.device != "cuda":
        return 0.0
    return 1 / -(-worker_count(config) // gpus)
