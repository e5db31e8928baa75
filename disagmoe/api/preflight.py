"""What can be known to be wrong before anything is started."""

from pathlib import Path

import torch

from disagmoe.actors.startup import open_data
from disagmoe.api.tensorboard import check_tensorboard
from disagmoe.cluster.ground import cuda_on, with_nodes
from disagmoe.cluster.join import OWN, Target
from disagmoe.cluster.local import check_local
from disagmoe.cluster.room import refuse_without_room
from disagmoe.cluster.shares import worker_count
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.config.trained import refuse_only_planned
from disagmoe.data.source import PreparedSource
from disagmoe.optim.groups import check_groups
from disagmoe.planner.auto import divided
from disagmoe.storage import Location


def preflight(config: RunConfig, target: Target = OWN) -> RunConfig:
    """Return `config` resolved for `target`, with absolute data paths, after opening its data.

    This process has joined `target` unless it is the run's own.

    Raises:
        ConfigError: settings that do not fit each other, the data or this machine, or that no run
            can execute yet.
        DataError: data that is missing, damaged or too small.
    """
    return opened(config, target)[0]


def opened(config: RunConfig, target: Target = OWN) -> tuple[RunConfig, PreparedSource]:
    """Return the same as `preflight`, and the data that it has opened."""
    refuse_only_planned(config)
    check_groups(config.model, config.train.optimizer)
    resolved = resolved_on(config, target)
    refuse_only_planned(resolved)  # now that workers per node are known
    paths = [str(Location.parse(path)) for path in resolved.data.paths]
    data = resolved.data.model_copy(update={"paths": paths})
    folder = resolved.checkpoint.folder
    checkpoint = resolved.checkpoint.model_copy(
        update={"folder": str(Location.parse(folder)) if folder else ""}
    )
    metrics = resolved.metrics
    if metrics.targets_dir:
        targets = str(Path(metrics.targets_dir).absolute())
        metrics = metrics.model_copy(update={"targets_dir": targets})
    resolved = resolved.model_copy(
        update={"data": data, "checkpoint": checkpoint, "metrics": metrics}
    )
    if metrics.tensorboard:
        check_tensorboard()
    refuse_without_room(resolved, target)
    source = open_data(resolved)
    if target.is_own:
        check_local()
    return resolved, source


def resolved_on(config: RunConfig, target: Target = OWN) -> RunConfig:
    """Return `config` divided and resolved for `target`, which this process has joined unless it is
    the run's own.

    Raises:
        ConfigError: settings that do not fit each other or the machines.
    """
    config = divided(config)
    cuda, cluster = cuda_on(target, config), config.cluster.mode == "cluster"
    # each worker of a cluster has its own; on one machine they may share
    own = cuda and (cluster or torch.cuda.device_count() >= worker_count(config))
    return with_nodes(target, resolve(config, cuda=cuda, own_gpus=own))
