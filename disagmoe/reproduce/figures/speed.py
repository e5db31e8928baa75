"""Figure 10: speed over the opponents, by model and length; the division is the best by roofs."""

from disagmoe.reproduce.figures.base import Experiment, setting, short
from disagmoe.reproduce.models import LENGTHS, MODELS
from disagmoe.reproduce.outcome import Case, Found, Outcome
from disagmoe.reproduce.rivals import Rivals, rivals
from disagmoe.reproduce.row import Band, Row
from disagmoe.reproduce.setting import CalibrationName, Setting

BANDS = {
    "megatron": ("1.59 to 1.81", Band.around(1.59, 1.81)),
    "tutel": ("1.2 to 1.5", Band(1.2, 1.5)),
    "comet": ("1.2 to 1.5", Band(1.2, 1.5)),
    "dualpipe": ("1.05 to 1.13", Band(1.05, 1.13)),
}
MOST = ("up to 1.8", Band.around(1.8))


def case(model: str, length: int, calibration: CalibrationName) -> Case:
    """The simulation of one bar."""
    return Case(setting=setting(model, length, calibration))


def cases(calibration: CalibrationName) -> list[Case]:
    """One per model and length."""
    return [case(model, length, calibration) for model in MODELS for length in LENGTHS]


def rows(calibration: CalibrationName, found: Found) -> list[Row]:
    """One per model, length and opponent, and one for the largest speed over Megatron."""
    all_rows = [
        row
        for model in MODELS
        for length in LENGTHS
        for row in _rows(model, length, calibration, found[case(model, length, calibration)])
    ]
    most = max(row.ours for row in all_rows if "over megatron" in row.claim)
    paper, band = MOST
    return [
        *all_rows,
        Row(
            figure="10",
            claim="largest speed over megatron",
            calibration=calibration,
            ours=most,
            paper=paper,
            band=band,
            second_hand=False,
            miss="" if most in band else "as the rows above",
        ),
    ]


def _rows(model: str, length: int, calibration: CalibrationName, ours: Outcome) -> list[Row]:
    at = setting(model, length, calibration)
    theirs = rivals(at)
    made = []
    for name, (paper, band) in BANDS.items():
        speed = theirs.by_name[name].seconds / ours.seconds
        made.append(
            Row(
                figure="10",
                claim=f"{model} {short(length)} over {name}",
                calibration=calibration,
                ours=speed,
                paper=paper,
                band=band,
                how=how(at, ours, theirs, name),
                miss="" if speed in band else _miss(theirs, ours, name, band),
            )
        )
    return made


def how(at: Setting, ours: Outcome, theirs: Rivals, name: str) -> str:
    """The division, its bound, and what other accounts of the opponent say."""
    roof = theirs.by_name[name].seconds / ours.roof
    wires = rivals(at, copies_by_network=False).by_name[name].seconds / ours.seconds
    return (
        f"{ours.split}, {ours.binding} binds; {100 * (ours.gap - 1):.0f} % above its bound; "
        f"{roof:.2f} without fill and drain; {wires:.2f} if the opponent's copies inside a host "
        "take NVLink"
    )


def _miss(theirs: Rivals, ours: Outcome, name: str, band: Band) -> str:
    speed = theirs.by_name[name].seconds / ours.seconds
    nearest = band.low if speed < band.low else band.high
    wanted = nearest * ours.seconds
    if name == "megatron":
        return (
            f"all-to-alls would have to take {theirs.network_factor(wanted):.2f} times as long, "
            f"{100 * theirs.network_factor(wanted) * theirs.network / wanted:.0f} % of Megatron's "
            f"step instead of {100 * theirs.network / (theirs.network + theirs.rest):.0f} %"
        )
    step = theirs.by_name[name].seconds / nearest
    below = ", below its bound: no schedule does" if step < ours.bound else ""
    return (
        f"our step would have to take {step / ours.seconds:.2f} times as long{below}; or "
        f"{name}'s {wanted / theirs.by_name[name].seconds:.2f} times"
    )


FIGURE = Experiment(name="fig10", title="speed over the opponents", cases=cases, rows=rows)
