"""Rows and effects as one JSON object and as text."""

from collections.abc import Sequence
from typing import Any

from disagmoe.reproduce.ablation import Effect
from disagmoe.reproduce.effects import effect_lines
from disagmoe.reproduce.row import Row
from disagmoe.reproduce.setting import CALIBRATIONS, CalibrationName

HEADLINE: CalibrationName = "h800-paperfit"
"""Whose held-out rows are counted first."""
FREE = ("rate of grouped products", "rate of projections", "rate of attention", "network card")
"""Parameters of the calibrations that were fitted to figure 6a."""
ASSUMPTIONS = (
    "64 workers on 8 hosts of 8 H800: 2 pairs of 16 + 16; opponents as 4 stages of 16",
    "one sequence per attention worker and micro-batch, 8 sequences per worker and step",
    "routing balanced, bf16, nothing computed again, one row per token and expert",
    "each side of a pair owns 16 network cards, however many workers it has",
    "opponents have one layer per chunk; all copies of their all-to-alls cross the network",
    "LM head and embedding count for nobody; GPT-OSS sees all keys in every layer",
    "sums of gradients and the update, which all systems have, are left out",
)


def as_json(rows: Sequence[Row], effects: Sequence[Effect]) -> dict[str, Any]:
    """All rows, how many are in their bands, and what was fitted."""
    held_out = _count(rows, HEADLINE)
    return {
        "rows": [_row_json(row) for row in rows],
        "held_out": held_out,
        "held_out_by_calibration": {name: _count(rows, name) for name in CALIBRATIONS},
        "fitted": {
            "calibrations": ["h800-paperfit", "h800-paperstep"],
            "parameters": list(FREE),
            "to": "figure 6a",
            **_count(rows, HEADLINE, fitted=True),
        },
        "assumptions": list(ASSUMPTIONS),
        "ablation": [_effect_json(effect) for effect in effects],
    }


def _count(rows: Sequence[Row], calibration: str, *, fitted: bool = False) -> dict[str, int]:
    counted = [row for row in rows if row.calibration == calibration and row.fitted == fitted]
    return {"in_band": sum(row.in_band for row in counted), "total": len(counted)}


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "figure": row.figure,
        "claim": row.claim,
        "calibration": row.calibration,
        "ours": row.ours,
        "paper": row.paper,
        "band": [row.band.low, row.band.high],
        "in_band": row.in_band,
        "fitted": row.fitted,
        "second_hand": row.second_hand,
        "how": row.how,
        "miss": row.miss,
    }


def _effect_json(effect: Effect) -> dict[str, Any]:
    return {
        "system": effect.system,
        "switch": effect.switch,
        "model": effect.model,
        "sequence_length": effect.length,
        "calibration": effect.calibration,
        "step_s": effect.seconds,
        "speed": effect.speed,
        "split": effect.split,
        "binding": effect.binding,
    }


def as_text(rows: Sequence[Row], effects: Sequence[Effect]) -> str:
    """Rows by figure, effects, counts, and why rows are out."""
    lines = ["taken to be so:", *(f"- {one}" for one in ASSUMPTIONS), ""]
    lines += _table(rows)
    for calibration in CALIBRATIONS:
        lines += effect_lines([x for x in effects if x.calibration == calibration], calibration)
    lines += [""] + [_count_line(rows, name) for name in CALIBRATIONS]
    lines += ["", "what would have to be true:"] + [
        f"- figure {row.figure}, {row.calibration}, {row.claim}: {row.miss}"
        for row in rows
        if row.miss
    ]
    return "\n".join(lines)


def _table(rows: Sequence[Row]) -> list[str]:
    width = max((len(row.claim) for row in rows), default=0)
    names = {name: name.removeprefix("h800-") for name in CALIBRATIONS}
    lines = [
        f"{'figure':<7}{'claim':<{width + 2}}{'paper':<14}"
        + "".join(f"{name:>15}" for name in names.values())
    ]
    by_claim: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        by_claim.setdefault((row.figure, row.claim), {})[row.calibration] = row
    for (figure, claim), found in by_claim.items():
        paper = next(iter(found.values()))
        mark = "*" if paper.second_hand else ""
        cells = "".join(f"{_cell(found.get(name)):>15}" for name in names)
        lines.append(f"{figure:<7}{claim:<{width + 2}}{paper.paper + mark:<14}{cells}")
    return [*lines, "* known from reviews of the paper only"]


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    verdict = "fitted" if row.fitted and row.in_band else "in" if row.in_band else "out"
    return f"{row.ours:.2f} {verdict:<6}"


def _count_line(rows: Sequence[Row], calibration: str) -> str:
    held_out, fitted = _count(rows, calibration), _count(rows, calibration, fitted=True)
    text = f"{calibration}: {held_out['in_band']} of {held_out['total']} held-out rows in band"
    if fitted["total"]:
        text += f", and {fitted['in_band']} of {fitted['total']} that were fitted"
    return text
