"""What `bench overlap` compares: systems, and the hosts, links and models that they run on."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from disagmoe.errors import ConfigError

AF_PIPE, EP_1F1B, EP_OVERLAP = "af_pipe", "ep_1f1b", "ep_overlap"
SYSTEMS = (AF_PIPE, EP_1F1B, EP_OVERLAP)


def workers_of(system: str, hosts: int) -> list[str]:
    """Return the settings with which `system` uses all `hosts` hosts, one worker on each."""
    sides = (hosts - hosts // 2, hosts // 2) if system == AF_PIPE else (hosts, hosts)
    return [
        f'parallel.schedule="{system}"',
        f"parallel.attention_workers={sides[0]}",
        f"parallel.expert_workers={sides[1]}",
    ]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Hosts and a model; every link has the same rate."""

    name: str
    about: str
    config: str
    """Run config below configs/bench/."""
    exposed_share: float
    """The link's rate is the one at which plain expert parallelism, by its compute and bytes,
    spends this share of its step on communication that nothing hides."""
    rates: tuple[float, ...]
    """Rates to measure, as multiples of that one."""
    micro_batch_sizes: tuple[int, ...]
    """Each system runs with the best of these for itself."""
    slow_host_cores: float | None = None
    """Share of its core that the last host has; None for all of it. It holds the experts."""


HEADLINE = "equal"
UNEQUAL = "unequal"

SCENARIOS = (
    Scenario(
        HEADLINE,
        "equal hosts, 8 experts, top-2",
        "equal.toml",
        exposed_share=0.5,
        rates=(1.0, 0.5, 2.0, 4.0),
        micro_batch_sizes=(1, 2, 4),
    ),
    Scenario(
        "fine_grained",
        "equal hosts, 32 narrow experts, top-8",
        "fine_grained.toml",
        exposed_share=0.5,
        rates=(1.0,),
        micro_batch_sizes=(1, 2, 4),
    ),
    Scenario(
        "long",
        "equal hosts, sequences of 4096",
        "long.toml",
        exposed_share=0.5,
        rates=(1.0,),
        micro_batch_sizes=(1, 2),
    ),
    Scenario(
        UNEQUAL,
        "the host that holds the experts has half a core",
        "unequal.toml",
        exposed_share=0.15,
        rates=(1.0,),
        micro_batch_sizes=(1, 2, 4),
        slow_host_cores=0.5,
    ),
)


def choose(
    scenarios: Sequence[Scenario], names: Sequence[str], *, quick: bool
) -> tuple[Scenario, ...]:
    """Return the scenarios of `names` (all where there are none); `quick` keeps those that decide,
    at one rate and with the micro-batch sizes of their configs.

    Raises:
        ConfigError: a name is no scenario.
    """
    known = [scenario.name for scenario in scenarios]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(f"no scenario {', '.join(unknown)}; scenarios are {', '.join(known)}")
    names = names or ([HEADLINE, UNEQUAL] if quick else known)
    chosen = [scenario for scenario in scenarios if scenario.name in names]
    if quick:
        chosen = [replace(scenario, rates=(1.0,), micro_batch_sizes=()) for scenario in chosen]
    return tuple(chosen)


def configs_folder() -> Path:
    """Return the folder of the scenarios' run configs: below here, or what was installed.

    Raises:
        ConfigError: there is none.
    """
    places = [Path("configs/bench"), Path(sys.prefix) / "share/disagmoe/configs/bench"]
    for place in places:
        if place.is_dir():
            return place
    raise ConfigError(
        f"no {' and no '.join(map(str, places))}; name the folder of the scenarios' run configs "
        "with --configs"
    )
