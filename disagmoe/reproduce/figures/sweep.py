"""Figure 13: top-k and expert parallelism, 64 experts; DeepSeek-MoE at 4K, groups of each size."""

from disagmoe.reproduce.figures.base import Experiment
from disagmoe.reproduce.models import DEEPSEEK_MOE
from disagmoe.reproduce.outcome import Case, Found
from disagmoe.reproduce.rivals import rivals
from disagmoe.reproduce.row import Band, Row
from disagmoe.reproduce.setting import CalibrationName, Setting

TOP_K = (2, 4, 8, 16)
SIDES = (8, 16, 32)
_WORKERS = 64
PAPER, BAND = "1.08 to 1.92", Band(1.08, 1.92)


def case(calibration: CalibrationName, top_k: int, side: int) -> Case:
    """One bar: as many pairs of groups as 64 workers are."""
    at = Setting(
        model=DEEPSEEK_MOE.model_copy(update={"top_k": top_k}),
        length=4096,
        calibration=calibration,
        side=side,
        pairs=_WORKERS // (2 * side),
    )
    return Case(setting=at)


def cases(calibration: CalibrationName) -> list[Case]:
    """Each top-k in each size."""
    return [case(calibration, top_k, side) for side in SIDES for top_k in TOP_K]


def speed(calibration: CalibrationName, top_k: int, side: int, found: Found) -> float:
    """Over Megatron."""
    one = case(calibration, top_k, side)
    return rivals(one.setting).by_name["megatron"].seconds / found[one].seconds


def rows(calibration: CalibrationName, found: Found) -> list[Row]:
    """One per top-k and size, and for each size whether the speed rises with top-k."""
    made = []
    for side in SIDES:
        by_k = {top_k: speed(calibration, top_k, side, found) for top_k in TOP_K}
        for top_k, value in by_k.items():
            one = case(calibration, top_k, side)
            made.append(
                Row(
                    figure="13",
                    claim=f"top-{top_k} of 64, expert parallelism {side}, over megatron",
                    calibration=calibration,
                    ours=value,
                    paper=PAPER,
                    band=BAND,
                    how=f"{found[one].split}, {found[one].binding} binds",
                    miss="" if value in BAND else _miss(one, value),
                )
            )
        rise = by_k[TOP_K[-1]] / by_k[TOP_K[0]]
        made.append(
            Row(
                figure="13",
                claim=f"top-16 over top-2, expert parallelism {side}",
                calibration=calibration,
                ours=rise,
                paper="rises",
                band=Band(1.0, 1.92 / 1.08),
                how=", ".join(f"top-{top_k} {value:.2f}" for top_k, value in by_k.items()),
                miss=(
                    ""
                    if rise >= 1
                    else f"with top-16 {found[case(calibration, 16, side)].binding} binds, which "
                    "grows with top-k as the opponent's all-to-alls do"
                ),
            )
        )
    return made


def _miss(one: Case, value: float) -> str:
    theirs = rivals(one.setting)
    wanted = (BAND.low if value < BAND.low else BAND.high) / value * (theirs.network + theirs.rest)
    return f"all-to-alls would have to take {theirs.network_factor(wanted):.2f} times as long"


FIGURE = Experiment(name="fig13", title="top-k and expert parallelism", cases=cases, rows=rows)
