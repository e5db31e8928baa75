"""A claim of the paper beside ours."""

from dataclasses import dataclass

from disagmoe.reproduce.setting import CalibrationName

TOLERANCE = 0.1
"""Of a single value, or of the ends of a range of speeds over Megatron: read off bars."""


@dataclass(frozen=True, slots=True)
class Band:
    """What counts as reproduced."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @classmethod
    def around(cls, low: float, high: float | None = None) -> "Band":
        """A value, or a range, with 10 % of it on either side."""
        return cls((1 - TOLERANCE) * low, (1 + TOLERANCE) * (low if high is None else high))

    @classmethod
    def points(cls, share: float, points: float = 0.1) -> "Band":
        """A share, give or take some points."""
        return cls(share - points, share + points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One claim under one calibration."""

    figure: str
    claim: str
    calibration: CalibrationName
    ours: float
    paper: str
    """What the paper reports."""
    band: Band
    second_hand: bool = True
    """Known from reviews of the paper alone; else from its abstract."""
    fitted: bool = False
    """Whether parameters of the calibration were fitted to it."""
    how: str = ""
    """What ours is made of."""
    miss: str = ""
    """What would have to be true for it to be in the band; empty where it is."""

    @property
    def in_band(self) -> bool:
        """Whether ours counts as reproduced."""
        return self.ours in self.band
