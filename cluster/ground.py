"""Where the workers of a run go: all on this machine, or on nodes of a cluster."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import ray
import torch

from disagmoe.actors.messages import Place, ray_name
from disagmoe.cluster.bundles import Bundle, cluster_bundles, filled, has_gpus
from disagmoe.cluster.join import Target
from disagmoe.cluster.local import LOOPBACK, local_ray
from disagmoe.cluster.nearest import nearest_fit
from disagmoe.cluster.nodes import Node, read_nodes
from disagmoe.cluster.placement import placed
from disagmoe.cluster.shares import cores, gpus_per_worker, threads_per_worker, worker_count
from disagmoe.config.run import RunConfig

_RAY_STEPS = 10_000  # Ray counts resources in ten thousandths


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Places for all workers of a run, which are its own for a while."""

    host: str
    """Address of this machine, where the driver is."""
    places: Mapping[str, Place]
    """Where workers are put first."""
    threads_per_worker: int
    cpus_per_worker: float = 1.0
    gpus_per_worker: float = 0.0
    token: str = ""
    """What it takes to join a Ray of the run's own."""
    renew: Callable[[frozenset[str]], Mapping[str, Place]] | None = None
    """Find places again after a failure, without the given nodes if others can take their place;
    None where the places stay."""


def cuda_on(target: Target, config: RunConfig) -> bool:
    """Whether the workers of `config` can have CUDA devices; this process has joined `target`.

    Where CUDA is asked for, a cluster's nodes are told to have it: placement says better what they
    lack.
    """
    if target.is_own:
        return torch.cuda.is_available()
    if config.cluster.device == "cuda":
        return True
    if config.cluster.mode == "cluster":
        return has_gpus(config, read_nodes())
    return this_node().gpus > 0


def with_nodes(target: Target, config: RunConfig) -> RunConfig:
    """Return the resolved `config` with what its cluster decides filled in."""
    if target.is_own or config.cluster.mode != "cluster":
        return config
    return filled(config, read_nodes())


@contextmanager
def ground(
    config: RunConfig, target: Target, run_id: str, say: Callable[[str], None]
) -> Iterator[Ground]:
    """Give the workers of the resolved `config` places on `target`, free again after the block.

    Raises:
        ConfigError, PlacementError: see `local_ray`, `placed`.
    """
    if target.is_own:
        with local_ray(worker_count(config), threads_per_worker(config, cores())) as token:
            yield on_own_ray(config, token)
    elif config.cluster.mode == "cluster":
        with _on_cluster(config, run_id, say) as given:
            yield given
    else:
        with _on_this_node(config, run_id, say) as given:
            yield given


def on_own_ray(config: RunConfig, token: str = "") -> Ground:
    """Return the places of the workers of `config` on the private Ray that `token` opens."""
    node = ray.get_runtime_context().get_node_id()
    place = Place(node=node, host=LOOPBACK, cpus=cores() // worker_count(config))
    return Ground(
        host=LOOPBACK,
        token=token,
        places=dict.fromkeys(config.parallel.worker_names, place),
        threads_per_worker=threads_per_worker(config, cores()),
        gpus_per_worker=gpus_per_worker(config, torch.cuda.device_count()),
    )


@contextmanager
def _on_this_node(config: RunConfig, run_id: str, say: Callable[[str], None]) -> Iterator[Ground]:
    """All workers share this node of a Ray that others may use too."""
    node = this_node()
    bundle = node_bundle(config, node)
    gpu_share = gpus_per_worker(config, max(node.gpus, 1))
    with placed([bundle], ray_name(run_id), wait_s=config.cluster.wait_s, say=say) as own:
        yield Ground(
            host=node.host,
            places=own.places,
            threads_per_worker=threads_per_worker(config, int(node.total.get("CPU", 0))),
            cpus_per_worker=share_of(bundle.cpus, len(bundle.workers)),
            gpus_per_worker=share_of(gpu_share, 1),
        )


def node_bundle(config: RunConfig, node: Node) -> Bundle:
    """Return what `config` asks of the one node `node`: at most the CPUs that it has, which workers
    share where there are more of them."""
    workers = tuple(config.parallel.worker_names)
    share = gpus_per_worker(config, max(node.gpus, 1))
    return Bundle(
        side=None,
        workers=workers,
        cpus=min(float(len(workers)), node.total.get("CPU", 0) or 1.0),
        gpus=float(math.ceil(share * len(workers) - 1e-9)),
        node=node.id,
    )


@contextmanager
def _on_cluster(config: RunConfig, run_id: str, say: Callable[[str], None]) -> Iterator[Ground]:
    with placed(
        cluster_bundles(config),
        ray_name(run_id),
        wait_s=config.cluster.wait_s,
        say=say,
        nearest=partial(nearest_fit, config),
    ) as own:
        least = max(1, min(place.cpus for place in own.places.values()))
        yield Ground(
            host=this_node().host,
            places=own.places,
            threads_per_worker=config.cluster.threads_per_worker or least,
            gpus_per_worker=1.0 if config.cluster.device == "cuda" else 0.0,
            renew=own.renew,
        )


def this_node() -> Node:
    """The node of the Ray that this process is connected to which it runs on."""
    here = ray.get_runtime_context().get_node_id()
    return next(node for node in read_nodes() if node.id == here)


def share_of(total: float, parts: int) -> float:
    """`total` over `parts`, rounded down to what Ray counts, so that all parts fit."""
    return math.floor(total / parts * _RAY_STEPS + 1e-6) / _RAY_STEPS
