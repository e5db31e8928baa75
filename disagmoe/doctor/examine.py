"""All checks that need torch and Ray, in the order of the report."""

import os
import resource
import site
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch

from disagmoe.actors.sysfs import read_gpus, read_nics
from disagmoe.cluster.ground import cuda_on, this_node, with_nodes
from disagmoe.cluster.join import Target, choose, joined
from disagmoe.cluster.local import LOOPBACK, check_local
from disagmoe.cluster.nodes import read_holders, read_nodes
from disagmoe.config.cluster import ClusterConfig
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.doctor.cluster import role_findings, run_finding, token_finding
from disagmoe.doctor.finding import Finding
from disagmoe.doctor.gpupath import (
    device_findings,
    library_finding,
    locked_memory_finding,
    network_finding,
)
from disagmoe.doctor.gpus import (
    gpu_finding,
    nccl_files,
    nccl_finding,
    nccl_packages,
)
from disagmoe.doctor.machine import open_files_finding, port_finding, shared_memory_finding
from disagmoe.errors import ConfigError, PlacementError
from disagmoe.transport.nccl_library import nccl_loaded


def examine(cluster: ClusterConfig, config: RunConfig | None, *, gpu: bool) -> Iterator[Finding]:
    """Yield what is found on this machine and in the Ray that `cluster` and the environment name;
    and whether the run `config`, if there is one, fits there. With `gpu` this machine is to train
    on GPUs, and what that needs must be here."""
    yield from _gpus()
    if gpu:
        yield from _gpu_path()
    yield port_finding(LOOPBACK)
    yield shared_memory_finding()
    yield open_files_finding()
    yield token_finding(os.environ, Path.home())
    yield from _ray(cluster, config)


def _gpus() -> Iterator[Finding]:
    seen = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield gpu_finding(read_gpus(), seen, torch.version.cuda)
    maps = Path("/proc/self/maps")
    yield nccl_finding(
        nccl_packages(metadata.distributions()),
        nccl_files(site.getsitepackages(), os.environ, Path("/")),
        nccl_loaded(maps.read_text(encoding="utf-8", errors="replace") if maps.exists() else ""),
    )


def _gpu_path() -> Iterator[Finding]:
    yield from device_findings()
    yield library_finding()
    yield network_finding(read_gpus(), read_nics(), os.environ)
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    yield locked_memory_finding(locked, resource.RLIM_INFINITY)


def _ray(cluster: ClusterConfig, config: RunConfig | None) -> Iterator[Finding]:
    try:
        target = choose(cluster, os.environ)
        if target.is_own:
            check_local()
            found = "none is named: a run starts a private one on this machine"
            yield Finding(subject="Ray to use", level="ok", found=found)
            return
        with joined(target) as there:
            yield Finding(subject="Ray to use", level="ok", found=str(there))
            yield port_finding(this_node().host)
            nodes = read_nodes()
            yield from role_findings(nodes)
            if config is not None and cluster.mode == "cluster":
                yield run_finding(_resolved(config, there), nodes, read_holders())
    except (ConfigError, PlacementError) as error:
        yield Finding(subject="Ray to use", level="problem", found=str(error))


def _resolved(config: RunConfig, target: Target) -> RunConfig:
    return with_nodes(target, resolve(config, cuda=cuda_on(target, config)))
