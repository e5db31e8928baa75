"""What the paper does not show: one switch at a time, for its three models at four lengths.

How rows are sent is switched for the opponents as well. There the copies for a worker's own host
take NVLink, which `dedupe` tells apart; in the figures all of them take the network, as the paper
has it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from disagmoe.config.parallel import DedupeName
from disagmoe.reproduce.figures.base import setting, short
from disagmoe.reproduce.models import LENGTHS, MODELS, WINDOWED
from disagmoe.reproduce.outcome import Case, Found
from disagmoe.reproduce.rivals import rivals
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
WAYS: dict[DedupeName, str] = {
    "none": BASE,
    "rank": "one row per worker",
    "node": "one row per host",
}
"""Switches that all systems have, by what they set."""
OURS = "split"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One switch on one model at one length."""

    system: str
    """`split`, or an opponent."""
    switch: str
    model: str
    length: int
    calibration: CalibrationName
    seconds: float
    speed: float
    """Over the same system's step without the switch."""
    split: str = ""
    binding: str = ""

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
                        system=OURS,
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
            made += _of_opponents(model, length, at)
    return made


def _of_opponents(model: str, length: int, at: Setting) -> Iterator[Effect]:
    theirs = {
        switch: rivals(replace(at, dedupe=way), copies_by_network=False).by_name
        for way, switch in WAYS.items()
    }
    for system, base in theirs[BASE].items():
        for switch, by_name in theirs.items():
            seconds = by_name[system].seconds
            yield Effect(
                system=system,
                switch=switch,
                model=model,
                length=length,
                calibration=at.calibration,
                seconds=seconds,
                speed=base.seconds / seconds,
            )
