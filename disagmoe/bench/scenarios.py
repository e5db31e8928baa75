"""What `bench overlap` compares: systems, and the hosts, links and models that they run on."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from disagmoe.errors import ConfigError

AF_PIPE, EP_1F1B, EP_OVERLAP = "af_pipe", "ep_1f1b", "ep_overlap"


@dataclass(frozen=True, slots=True)
class System:
    """A way to train on all hosts, one worker on each."""

    name: str
    schedule: str
    shares: tuple[int, ...] = ()
    """How sequences and experts are divided among the hosts; empty for equal shares."""

    def settings(self, hosts: int) -> list[str]:
        """Return its part of a run config."""
        sides = (hosts - hosts // 2, hosts // 2) if self.schedule == AF_PIPE else (hosts, hosts)
        shares = [float(share) for share in self.shares]
        return [
            f'parallel.schedule="{self.schedule}"',
            f"parallel.attention_workers={sides[0]}",
            f"parallel.expert_workers={sides[1]}",
            f"parallel.attention_shares={shares}",
            f"parallel.expert_shares={shares}",
        ]

    def micro_batch_sizes(self, hosts: int, per_host: Sequence[float]) -> list[int]:
        """Return the sizes nearest to `per_host` sequences that give each worker its share."""
        unit = hosts - hosts // 2 if self.schedule == AF_PIPE else sum(self.shares) or hosts
        return sorted({unit * max(1, round(hosts * size / unit)) for size in per_host})


SYSTEMS = tuple(System(name, name) for name in (AF_PIPE, EP_1F1B, EP_OVERLAP))
TWO_TO_ONE = tuple(
    System(f"{schedule}_2:1", schedule, shares=(2, 1)) for schedule in (EP_1F1B, EP_OVERLAP)
)
"""Colocated layouts that give the second host half as much to do."""


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
    micro_batches: tuple[float, ...] = (1, 2)
    """Sizes of a micro-batch in sequences per host, or what comes next to it that gives every
    worker something to do; each system runs with the best of them for itself."""
    systems: tuple[System, ...] = SYSTEMS
    settings: tuple[str, ...] = ()
    """Changes to the run config."""
    rate_trials: int = 2
    """How often the rate is corrected by what plain expert parallelism has shown at it."""
    slow_host_cores: float | None = None
    """Share of its core that the last host has; None for all of it. It holds the experts."""


HEADLINE = "equal"
UNEQUAL = "unequal"

_QUICK_BATCH = 14

SCENARIOS = (
    Scenario(
        HEADLINE,
        "equal hosts, 8 experts, top-2",
        "equal.toml",
        exposed_share=0.5,
        rates=(1.0, 0.7, 2.0),
    ),
    Scenario(
        "fine_grained",
        "equal hosts, 32 narrow experts, top-8",
        "fine_grained.toml",
        exposed_share=0.5,
        rates=(1.0,),
    ),
    Scenario(
        "long",
        "equal hosts, sequences of 2048",
        "long.toml",
        exposed_share=0.5,
        rates=(1.0,),
        micro_batches=(0.5,),
    ),
    Scenario(
        UNEQUAL,
        "the host that holds the experts has half a core",
        "unequal.toml",
        exposed_share=0.15,
        rates=(1.0,),
        rate_trials=0,  # it waits for the slow host as well: compute and bytes have to do
        systems=SYSTEMS + TWO_TO_ONE,
        slow_host_cores=0.5,
    ),
)


def choose(
    scenarios: Sequence[Scenario], names: Sequence[str], *, quick: bool
) -> tuple[Scenario, ...]:
    """Return the scenarios of `names` (all where there are none); `quick` keeps those that decide,
    at one rate, with small batches, one size of micro-batches and equal shares.

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
        chosen = [
            replace(
                scenario,
                rates=(1.0,),
                micro_batches=(1,),
                systems=SYSTEMS,
                settings=(f"train.global_batch_size={_QUICK_BATCH}",),
                rate_trials=min(1, scenario.rate_trials),
            )
            for scenario in chosen
        ]
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
