"""What can be known to be wrong before anything is started."""

import torch

from disagmoe.actors.startup import open_data
from disagmoe.cluster.local import check_local
from disagmoe.cluster.shares import worker_count
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.data.storage import Location


def preflight(config: RunConfig) -> RunConfig:
    """Return `config` resolved for this machine, with absolute data paths, after opening its data.

    Raises:
        ConfigError: settings that do not fit each other, the data or this machine.
        DataError: data that is missing, damaged or too small.
    """
    resolved = resolve(
        config,
        cuda=torch.cuda.is_available(),
        own_gpus=torch.cuda.device_count() >= worker_count(config),
    )
    paths = [str(Location.parse(path)) for path in resolved.data.paths]
    data = resolved.data.model_copy(update={"paths": paths})
    resolved = resolved.model_copy(update={"data": data})
    open_data(resolved)
    check_local()
    return resolved
