"""What all experiments are made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from disagmoe.reproduce.models import MODELS
from disagmoe.reproduce.outcome import Case, Found
from disagmoe.reproduce.row import Row
from disagmoe.reproduce.setting import CalibrationName, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Cases to simulate, and rows made of their outcomes; both for one calibration."""

    name: str
    title: str
    cases: Callable[[CalibrationName], Sequence[Case]]
    rows: Callable[[CalibrationName, Found], Sequence[Row]]


def setting(model: str, length: int, calibration: CalibrationName) -> Setting:
    """The usual setting of a model."""
    return Setting(model=MODELS[model], length=length, calibration=calibration)


def short(length: int) -> str:
    """`4K`."""
    return f"{length // 1024}K"
