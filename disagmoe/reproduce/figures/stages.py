"""Figure 14: virtual stages, Qwen3's layers as many as give each group v of them (L = p v).

Speed is counted in layers, so that a deeper model does not look slower. What fits is what the
paper's groups of 16 + 16 workers hold with balanced routing.
"""

from itertools import pairwise

from disagmoe.reproduce.figures.base import Experiment
from disagmoe.reproduce.models import QWEN3
from disagmoe.reproduce.outcome import Case, Found
from disagmoe.reproduce.row import Band, Row
from disagmoe.reproduce.setting import CalibrationName, Setting, even

STAGES = (1, 2, 4, 8, 16, 32)
MOST = 16
_PAIRS = 2


def case(calibration: CalibrationName, stages: int) -> Case:
    """One bar."""
    model = QWEN3.model_copy(update={"layers": _PAIRS * stages})
    at = Setting(model=model, length=4096, calibration=calibration, pairs=_PAIRS)
    return Case(setting=at, split=even(at))


def cases(calibration: CalibrationName) -> list[Case]:
    """Each number of virtual stages."""
    return [case(calibration, stages) for stages in STAGES]


def speeds(calibration: CalibrationName, found: Found) -> dict[int, float]:
    """Layers and steps per second, over those of one stage."""
    rate = {stages: stages / found[case(calibration, stages)].seconds for stages in STAGES}
    return {stages: value / rate[1] for stages, value in rate.items()}


def rows(calibration: CalibrationName, found: Found) -> list[Row]:
    """Whether speed rises up to 16 stages, and the most that fit."""
    speed = speeds(calibration, found)
    least = min(speed[b] / speed[a] for a, b in pairwise(STAGES) if b <= MOST)
    need = {stages: found[case(calibration, stages)].fullest for stages in STAGES}
    fitting = max((stages for stages in STAGES if need[stages] <= 1), default=0)
    band = Band(1.0, 2.0)
    return [
        Row(
            figure="14",
            claim="Qwen3-235B 4K least gain by twice as many virtual stages, up to 16",
            calibration=calibration,
            ours=least,
            paper="rises",
            band=band,
            how="speed: " + ", ".join(f"{stages} {value:.3f}" for stages, value in speed.items()),
            miss="" if least in band else "the ring is full with fewer stages already",
        ),
        Row(
            figure="14",
            claim="Qwen3-235B 4K most virtual stages that fit into memory",
            calibration=calibration,
            ours=fitting,
            paper="16",
            band=Band(MOST, MOST),
            how="memory: " + ", ".join(f"{one} {100 * value:.0f} %" for one, value in need.items()),
            miss="" if fitting == MOST else _miss(calibration, found),
        ),
    ]


def _miss(calibration: CalibrationName, found: Found) -> str:
    most, more = (found[case(calibration, stages)] for stages in (MOST, 2 * MOST))
    return (
        f"all activations kept, {MOST} stages need {100 * most.fullest:.0f} % of memory; weights, "
        f"gradients and optimizer alone {100 * most.states:.0f} %, those of {2 * MOST} stages "
        f"{100 * more.states:.0f} %: it holds if activations are computed again or moved away"
    )


FIGURE = Experiment(name="fig14", title="virtual stages", cases=cases, rows=rows)
