"""Figures 5 and 11: communication that nothing hides, at 8K."""

from collections.abc import Iterator

from disagmoe.reproduce.figures import speed
from disagmoe.reproduce.figures.base import Experiment, setting
from disagmoe.reproduce.outcome import Case, Found
from disagmoe.reproduce.rivals import rivals
from disagmoe.reproduce.row import Band, Row
from disagmoe.reproduce.setting import CalibrationName

LENGTH = 8192
VISIBLE = Band(0.02, 1.0)
"""Share of a step that can be seen in a bar."""
CUTS = {"tutel": 0.88, "comet": 0.75, "dualpipe": 0.45}


def no_cases(calibration: CalibrationName) -> list[Case]:
    """None: opponents are closed forms."""
    del calibration
    return []


def rows_of_5(calibration: CalibrationName, found: Found) -> list[Row]:
    """Each of three opponents leaves some, on two models."""
    del found
    made = []
    for model in ("DeepSeek-MoE", "GPT-OSS-120B"):
        theirs = rivals(setting(model, LENGTH, calibration)).by_name
        for name in ("megatron", "tutel", "comet"):
            share = theirs[name].exposed / theirs[name].seconds
            made.append(
                Row(
                    figure="5",
                    claim=f"{model} 8K share that {name} leaves exposed",
                    calibration=calibration,
                    ours=share,
                    paper="visible",
                    band=VISIBLE,
                    miss="" if share in VISIBLE else "all-to-alls would have to take longer",
                )
            )
    return made


def cases_of_11(calibration: CalibrationName) -> list[Case]:
    """DeepSeek-MoE at 8K, as in figure 10."""
    return [speed.case("DeepSeek-MoE", LENGTH, calibration)]


def rows_of_11(calibration: CalibrationName, found: Found) -> list[Row]:
    """How much of it the split removes, and what stays alike."""
    return list(_rows_of_11(calibration, found))


def _rows_of_11(calibration: CalibrationName, found: Found) -> Iterator[Row]:
    at = setting("DeepSeek-MoE", LENGTH, calibration)
    ours, theirs = found[cases_of_11(calibration)[0]], rivals(at)
    megatron = theirs.by_name["megatron"]
    made: list[tuple[str, float, str, Band, str]] = []
    for name, cut in CUTS.items():
        exposed = theirs.by_name[name].exposed
        made.append(
            (
                f"exposed communication less than {name}'s, by",
                1 - ours.exposed / exposed,
                f"{cut:.2f}",
                Band.points(cut),
                f"ours would have to be {1e3 * (1 - cut) * exposed:.0f} ms of the step instead of "
                f"{1e3 * ours.exposed:.0f}; {name}'s is {1e3 * exposed:.0f}",
            )
        )
    share = megatron.exposed / megatron.seconds
    made.append(
        (
            "share that megatron leaves exposed",
            share,
            "about 1/3",
            Band.points(1 / 3),
            f"all-to-alls would have to take {_third(theirs.network, theirs.rest):.2f} times as "
            "long",
        )
    )
    made.append(
        (
            "compute per worker over megatron's",
            ours.compute / theirs.rest,
            "nearly 1",
            Band.around(1.0),
            "workers would have to compute as much",
        )
    )
    for claim, value, paper, band, miss in made:
        yield Row(
            figure="11",
            claim=f"DeepSeek-MoE 8K {claim}",
            calibration=calibration,
            ours=value,
            paper=paper,
            band=band,
            miss="" if value in band else miss,
        )


def _third(network: float, rest: float) -> float:
    """Of the network's time, for a third of the step."""
    return rest / 2 / network


FIGURE_5 = Experiment(
    name="fig5", title="what opponents leave exposed", cases=no_cases, rows=rows_of_5
)
FIGURE_11 = Experiment(
    name="fig11", title="exposed communication removed", cases=cases_of_11, rows=rows_of_11
)
