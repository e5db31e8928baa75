"""All experiments, by name."""

from disagmoe.reproduce.figures import division, shares, speed, stages, sweep
from disagmoe.reproduce.figures.base import Experiment
from disagmoe.reproduce.figures.overlap import FIGURE_5, FIGURE_11

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        FIGURE_5,
        shares.FIGURE,
        speed.FIGURE,
        FIGURE_11,
        division.FIGURE,
        sweep.FIGURE,
        stages.FIGURE,
    )
}
