"""Figure 12: workers taken away from one side, network cards fixed at 16 on each; speed per worker.

No source names its model. Its two optima need attention and experts to take about equally long at
4K, and attention 1.6 times as long at 16K; of the three models that is GPT-OSS.
"""

from disagmoe.reproduce.figures.base import Experiment, setting, short
from disagmoe.reproduce.outcome import Case, Found
from disagmoe.reproduce.rivals import rivals
from disagmoe.reproduce.row import Band, Row
from disagmoe.reproduce.setting import CalibrationName, Split

MODEL = "GPT-OSS-120B"
SPLITS = tuple(
    Split(attention=attention, experts=experts)
    for attention, experts in ((16, 16), (16, 14), (16, 12), (16, 10), (16, 8), (8, 16))
)
EVEN, BEST_LONG, EXTREMES = SPLITS[0], SPLITS[3], SPLITS[4:]
SHORT, LONG = 4096, 16384


def case(calibration: CalibrationName, length: int, split: Split) -> Case:
    """One bar."""
    return Case(setting=setting(MODEL, length, calibration), split=split)


def cases(calibration: CalibrationName) -> list[Case]:
    """Each split at both lengths."""
    return [case(calibration, length, split) for length in (SHORT, LONG) for split in SPLITS]


def speeds(calibration: CalibrationName, length: int, found: Found) -> dict[Split, float]:
    """Tokens per second and worker, over Megatron's."""
    megatron = rivals(setting(MODEL, length, calibration)).by_name["megatron"].seconds
    whole = EVEN.attention + EVEN.experts
    return {
        split: megatron
        / found[case(calibration, length, split)].seconds
        * whole
        / (split.attention + split.experts)
        for split in SPLITS
    }


def rows(calibration: CalibrationName, found: Found) -> list[Row]:
    """Both optima, their height, and the extremes."""
    made = []
    at = {length: speeds(calibration, length, found) for length in (SHORT, LONG)}
    for length, wanted in ((SHORT, EVEN), (LONG, BEST_LONG)):
        best = max(at[length], key=lambda split: at[length][split])
        made.append(
            Row(
                figure="12",
                claim=f"{MODEL} {short(length)} best split, attention over expert workers",
                calibration=calibration,
                ours=_ratio(best),
                paper=str(wanted),
                band=Band(_ratio(wanted), _ratio(wanted)),
                how=_how(at[length]),
                miss="" if best == wanted else _miss(calibration, length, wanted, found),
            )
        )
    heights = {
        f"16:10 at {short(LONG)} over megatron": (at[LONG][BEST_LONG], 1.56),
        f"16:10 at {short(LONG)} over 16:16": (at[LONG][BEST_LONG] / at[LONG][EVEN], 1.29),
        **{
            f"{split} at {short(SHORT)} over megatron": (at[SHORT][split], 1.0)
            for split in EXTREMES
        },
    }
    for claim, (ours, paper) in heights.items():
        band = Band.around(paper)
        made.append(
            Row(
                figure="12",
                claim=f"{MODEL} {claim}, per worker",
                calibration=calibration,
                ours=ours,
                paper=f"{paper:.2f}" if paper != 1.0 else "about 1",
                band=band,
                miss="" if ours in band else _height_miss(calibration, claim, ours, band, found),
            )
        )
    return made


def _ratio(split: Split) -> float:
    return split.attention / split.experts


def _how(speed: dict[Split, float]) -> str:
    return "speed per worker: " + ", ".join(f"{one} {value:.2f}" for one, value in speed.items())


def _miss(calibration: CalibrationName, length: int, wanted: Split, found: Found) -> str:
    costs = found[case(calibration, length, EVEN)]
    return (
        f"attention would have to take about {_ratio(wanted):.1f} times as long as experts with "
        f"nothing else in the way; at 16:16 {costs.binding} binds"
    )


def _height_miss(
    calibration: CalibrationName, claim: str, ours: float, band: Band, found: Found
) -> str:
    nearest = band.low if ours < band.low else band.high
    if "over 16:16" in claim:
        binding = found[case(calibration, LONG, BEST_LONG)].binding
        return f"at 16:10 {binding} binds; it would have to take {ours / nearest:.2f} times as long"
    length = LONG if short(LONG) in claim else SHORT
    theirs = rivals(setting(MODEL, length, calibration))
    wanted = nearest / ours * (theirs.network + theirs.rest)
    return (
        f"megatron's all-to-alls would have to take {theirs.network_factor(wanted):.2f} times as "
        "long"
    )


FIGURE = Experiment(name="fig12", title="attention and expert workers", cases=cases, rows=rows)
