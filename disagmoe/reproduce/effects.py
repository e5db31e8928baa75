"""Effects of the ablation as text: one line per switch, or per system and way to send rows."""

from collections.abc import Callable, Iterable, Sequence

from disagmoe.config.parallel import DedupeName
from disagmoe.planner.explain import TAKERS
from disagmoe.reproduce.ablation import OURS, SWITCHES, WAYS, Effect

_Place = tuple[str, int]
"""Model and length: a column."""


def effect_lines(effects: Sequence[Effect], calibration: str) -> list[str]:
    """Return three tables of `effects`, which are those of one calibration."""
    if not effects:
        return []
    at = {(one.system, one.switch, (one.model, one.length)): one for one in effects}
    places = list(dict.fromkeys((one.model, one.length) for one in effects))
    others = list(dict.fromkeys(one.system for one in effects if one.system != OURS))

    def speed(system: str, switch: str) -> Callable[[_Place], float]:
        return lambda place: at[system, switch, place].speed

    def ratio(system: str, switch: str) -> Callable[[_Place], float]:
        return lambda place: at[system, switch, place].seconds / at[OURS, switch, place].seconds

    own = [(name, speed(OURS, name)) for name in SWITCHES]
    gains = [
        (_label(system, way), speed(system, switch))
        for way, switch in WAYS.items()
        for system in others
        if way != "none"
    ]
    leads = [
        (_label(system, way), ratio(system, switch))
        for way, switch in WAYS.items()
        for system in others
    ]
    return [
        *_table(f"speed of the split over the first line, {calibration}", places, own),
        *_table(f"speed of others over a row per expert, {calibration}", places, gains),
        *_table(f"speed of the split over others, rows alike, {calibration}", places, leads),
    ]


def _table(
    title: str,
    places: Sequence[_Place],
    rows: Iterable[tuple[str, Callable[[_Place], float]]],
) -> list[str]:
    heads = (f"{model.split('-')[0]} {length // 1024}K" for model, length in places)
    lines = ["", f"{title}:", f"{'':<30}" + "".join(f"{head:>14}" for head in heads)]
    for name, value in rows:
        lines.append(f"{name:<30}" + "".join(f"{value(place):>14.2f}" for place in places))
    return lines


def _label(system: str, way: DedupeName) -> str:
    return f"{system}, row per {TAKERS[way]}"
