"""All that `disagmoe reproduce` computes."""

from collections.abc import Sequence
from dataclasses import dataclass

from disagmoe.errors import ConfigError
from disagmoe.reproduce import ablation
from disagmoe.reproduce.ablation import Effect
from disagmoe.reproduce.experiments import EXPERIMENTS
from disagmoe.reproduce.outcome import Case, Found, outcomes
from disagmoe.reproduce.row import Row
from disagmoe.reproduce.setting import CALIBRATIONS

ABLATION = "ablation"
NAMES = (*EXPERIMENTS, ABLATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Rows and effects, and the simulations that they are made of."""

    rows: tuple[Row, ...]
    effects: tuple[Effect, ...]
    found: Found


def check_names(names: Sequence[str]) -> None:
    """Raise ConfigError for a name of no experiment."""
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"no experiment {name!r}; there are {', '.join(NAMES)}")


def reproduce(names: Sequence[str] = NAMES, *, jobs: int = 1) -> Reproduction:
    """Simulate the experiments `names` under all calibrations.

    Raises:
        ConfigError: a name of no experiment.
    """
    check_names(names)
    figures = [EXPERIMENTS[name] for name in EXPERIMENTS if name in names]
    cases: list[Case] = [
        case for figure in figures for name in CALIBRATIONS for case in figure.cases(name)
    ]
    if ABLATION in names:
        cases += [case for name in CALIBRATIONS for case in ablation.cases(name)]
    found = outcomes(cases, jobs)
    return Reproduction(
        rows=tuple(
            row for figure in figures for name in CALIBRATIONS for row in figure.rows(name, found)
        ),
        effects=tuple(
            effect
            for name in CALIBRATIONS
            if ABLATION in names
            for effect in ablation.effects(name, found)
        ),
        found=found,
    )
