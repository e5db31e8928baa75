"""What can be known to be wrong before anything is started."""

import torch

from disagmoe.actors.startup import open_data
from disagmoe.cluster.local import check_local
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.config.trained import refuse_only_planned
from disagmoe.data.source import PreparedSource
from disagmoe.optim.groups import check_groups
from disagmoe.storage import Location


def preflight(config: RunConfig) -> RunConfig:
    """Return `config` resolved for this machine, with absolute paths, after opening its data.

    Raises:
        ConfigError: settings that do not fit each other, the data or this machine, or that no run
            can execute yet.
        DataError: data that is missing, damaged or too small.
    """
    return opened(config)[0]


def opened(config: RunConfig) -> tuple[RunConfig, PreparedSource]:
    """Return the same as `preflight`, and the data that it has opened."""
    refuse_only_planned(config)
    check_groups(config.model, config.train.optimizer)
    resolved = resolve(config, cuda=torch.cuda.is_available())
    paths = [str(Location.parse(path)) for path in resolved.data.paths]
    data = resolved.data.model_copy(update={"paths": paths})
    folder = resolved.checkpoint.folder
    checkpoint = resolved.checkpoint.model_copy(
        update={"folder": str(Location.parse(folder)) if folder else ""}
    )
    resolved = resolved.model_copy(update={"data": data, "checkpoint": checkpoint})
    source = open_data(resolved)
    check_local()
    return resolved, source
