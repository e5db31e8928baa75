"""`parallel.layout = "auto"`: the planner's choice in place of the config's."""

from disagmoe.config.run import RunConfig
from disagmoe.planner.search import search


def divided(config: RunConfig) -> RunConfig:
    """Return `config` with the layout that the planner chooses, or as it is where that is fixed.

    Raises:
        ConfigError: nothing fits into memory.
    """
    if config.parallel.layout == "fixed":
        return config
    return search(config).best.config
