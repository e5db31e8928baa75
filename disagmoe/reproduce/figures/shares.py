"""Figure 6a: what attention, experts and all-to-alls take, of Qwen3 over 8 hosts; nothing overlaps.

`h800-paperfit` and `h800-paperstep` were fitted to it, the first by the times of a forward, the
second by those of a whole step; other calibrations are compared by a forward.
"""

from disagmoe.reproduce.figures.base import Experiment, short
from disagmoe.reproduce.models import QWEN3
from disagmoe.reproduce.outcome import Case, Found
from disagmoe.reproduce.row import Band, Row
from disagmoe.reproduce.setting import CalibrationName, Setting, colocated_run, times_of
from disagmoe.schedule.costs import OpCosts

PAPER = {4096: (0.2838, 0.1922, 0.5240), 32768: (0.5026, 0.1396, 0.3578)}
PARTS = ("attention", "experts", "all-to-alls")
FITTED = ("h800-paperfit", "h800-paperstep")
_HOSTS = 8


def shares(calibration: CalibrationName, length: int) -> tuple[float, float, float]:
    """Shares of the three parts; they add up to 1."""
    at = Setting(model=QWEN3, length=length, calibration=calibration, side=8 * _HOSTS)
    run = colocated_run(at, copies_by_network=False)
    one_stage = run.parallel.model_copy(update={"groups": 1, "residual": "local"})
    costs = times_of(run.model_copy(update={"parallel": one_stage})).op_costs()
    parts = _step(costs) if calibration == "h800-paperstep" else _forward(costs)
    attention, experts, network = (part / sum(parts) for part in parts)
    return attention, experts, network


def _forward(costs: OpCosts) -> tuple[float, float, float]:
    return costs.attn_fwd, costs.experts_fwd, costs.rows + costs.outputs


def _step(costs: OpCosts) -> tuple[float, float, float]:
    attention, experts, network = _forward(costs)
    return (
        attention + costs.attn_bwd,
        experts + costs.experts_bwd,
        network + costs.doutputs + costs.drows,
    )


def cases(calibration: CalibrationName) -> list[Case]:
    """None: nothing is simulated."""
    del calibration
    return []


def rows(calibration: CalibrationName, found: Found) -> list[Row]:
    """One per length and part."""
    del found
    return [
        Row(
            figure="6a",
            claim=f"Qwen3-235B {short(length)} share of {part}",
            calibration=calibration,
            ours=ours,
            paper=f"{theirs:.4f}",
            band=Band.points(theirs, 0.02),
            fitted=calibration in FITTED,
            miss=(
                ""
                if ours in Band.points(theirs, 0.02)
                else f"{part} would have to take {_factor(ours, theirs):.2f} times as long"
            ),
        )
        for length, paper in PAPER.items()
        for part, ours, theirs in zip(PARTS, shares(calibration, length), paper, strict=True)
    ]


def _factor(ours: float, theirs: float) -> float:
    """Of a part's time, the others given, for its share to be theirs."""
    return theirs / (1 - theirs) * (1 - ours) / ours


FIGURE = Experiment(name="fig6a", title="shares of a layer's time", cases=cases, rows=rows)
