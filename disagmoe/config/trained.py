"""Settings that the planning commands know and no run can execute yet."""

from disagmoe.config.catalogue import join_words
from disagmoe.config.families import TRAINED
from disagmoe.config.hosts import unequal_hosts
from disagmoe.config.run import RunConfig
from disagmoe.config.tomlwrite import format_value
from disagmoe.errors import ConfigError


def only_planned(config: RunConfig) -> list[str]:
    """Return what keeps `config` from being run; [] where nothing does."""
    found = []
    if config.model.family not in TRAINED:
        families = join_words([format_value(family) for family in sorted(TRAINED)])
        found.append(
            f"model.family = {format_value(config.model.family)} can be planned and simulated, but "
            f"not trained yet; use {families}"
        )
    parallel = config.parallel
    found += unequal_hosts(config)
    if parallel.dispatch == "fp8":
        found.append('parallel.dispatch = "fp8" can be simulated, but not run yet; use "same"')
    return found


def refuse_only_planned(config: RunConfig) -> None:
    """Raise ConfigError, with all reasons, where `config` cannot be run."""
    found = only_planned(config)
    if found:
        raise ConfigError(found)
