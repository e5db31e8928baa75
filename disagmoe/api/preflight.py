"""What can be known to be wrong before anything is started."""

from pathlib import Path

import torch

from disagmoe.actors.startup import open_data
from disagmoe.api.tensorboard import check_tensorboard
from disagmoe.cluster.local import check_local
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.data.storage import Location


def preflight(config: RunConfig) -> RunConfig:
    """Return `config` resolved for this machine, with absolute paths, after opening its data.

    Raises:
        ConfigError: settings that do not fit each other, the data or this machine.
        DataError: data that is missing, damaged or too small.
    """
    resolved = resolve(config, cuda=torch.cuda.is_available())
    paths = [str(Location.parse(path)) for path in resolved.data.paths]
    data = resolved.data.model_copy(update={"paths": paths})
    metrics = resolved.metrics
    if metrics.targets_dir:
        folder = str(Path(metrics.targets_dir).absolute())
        metrics = metrics.model_copy(update={"targets_dir": folder})
    resolved = resolved.model_copy(update={"data": data, "metrics": metrics})
    if resolved.metrics.tensorboard:
        check_tensorboard()
    open_data(resolved)
    check_local()
    return resolved
