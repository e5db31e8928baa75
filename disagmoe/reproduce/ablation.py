"""What the paper does not show: one switch at a time, for its three models at four lengths."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from disagmoe.reproduce.figures.base import setting, short
from disagmoe.reproduce.models import LENGTHS, MODELS, WINDOWED
from disagmoe.reproduce.outcome import Case, Found
from disagmoe.reproduce.setting import CalibrationName, Setting, even

BASE = "one row per expert, best split"


def _even(at: Setting) -> Case:
    return Case(setting=at, split=even(at))


def _with(**switches: object) -> Callable[[Setting], Case]:
    def case(at: Setting) -> Case:
        return Case(setting=replace(at, **switches))  # type: ignore[arg-type]  # names of fields

    return case


def _windowed(at: Setting) -> Case:
    known = at.model == MODELS["GPT-OSS-120B"]
    return Case(setting=replace(at, model=WINDOWED) if known else at)


SWITCHES: dict[str, Callable[[Setting], Case]] = {
    BASE: _with(),
    "equal sides": _even,
    "residual sent apart": _with(residual="direct"),
    "one row per worker": _with(dedupe="rank"),
    "one row per host": _with(dedupe="node"),
    "fp8 to the experts": _with(dispatch="fp8"),
    "one row per host, fp8": _with(dedupe="node", dispatch="fp8"),
    "backward in two parts": _with(split_backward=True),
    "sides share hosts": _with(mixed_nodes=True),
    "with LM head": _with(head=True),
    "windows in every other layer": _windowed,
}
"""Each against the first. Windows are those of GPT-OSS; other models have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One switch on one model at one length."""

    switch: str
    model: str
    length: int
    calibration: CalibrationName
    seconds: float
    speed: float
    """Over the step without the switch."""
    split: str
    binding: str

    @property
    def column(self) -> str:
        """Model and length."""
        return f"{self.model} {short(self.length)}"


def cases(calibration: CalibrationName) -> list[Case]:
    """All switches."""
    return [
        switch(setting(model, length, calibration))
        for model in MODELS
        for length in LENGTHS
        for switch in SWITCHES.values()
    ]


def effects(calibration: CalibrationName, found: Found) -> Sequence[Effect]:
    """All switches, by model and length."""
    made = []
    for model in MODELS:
        for length in LENGTHS:
            at = setting(model, length, calibration)
            base = found[SWITCHES[BASE](at)].seconds
            for name, switch in SWITCHES.items():
                one = found[switch(at)]
                made.append(
                    Effect(
                        switch=name,
                        model=model,
                        length=length,
                        calibration=calibration,
                        seconds=one.seconds,
                        speed=base / one.seconds,
                        split=str(one.split),
                        binding=one.binding,
                    )
                )
    return made
