"""How the comparison depends on the network: closed forms of all systems, by speed of cards."""

from dataclasses import dataclass, replace

from disagmoe.planner.roofline import roofs_of
from disagmoe.reproduce.outcome import balanced, roof_s, split_times
from disagmoe.reproduce.rivals import rivals
from disagmoe.reproduce.setting import Setting

SPEEDS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
"""Multiples of a card of 400 Gbit/s."""
RIVALS = ("tutel", "dualpipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speeds over Megatron at one speed of all cards."""

    nic_speed: float
    by_system: dict[str, float]


def sensitivity(setting: Setting) -> list[Speed]:
    """One per speed of cards; the split by its highest roof, at its best division."""
    found = []
    for nic_speed in SPEEDS:
        at = replace(setting, nic_speed=nic_speed)
        theirs = rivals(at).by_name
        split = balanced(at)
        seconds = {
            "split": roof_s(at, split, roofs_of(split_times(at, split))),
            **{name: theirs[name].seconds for name in RIVALS},
        }
        speeds = {name: theirs["megatron"].seconds / value for name, value in seconds.items()}
        found.append(Speed(nic_speed=nic_speed, by_system=speeds))
    return found
