"""Expressions that panels and rules share: shares of time and rates, from the catalogue's names.

`where` is a list of label matchers without braces, such as `run=~"$run"`; `window` is a duration.
"""

from collections.abc import Collection

from disagmoe.metrics import catalogue
from disagmoe.metrics.catalogue import Metric
from disagmoe.schedule.accounting import BUSY, EXPOSED, Kind

RUN = 'run=~"$run"'
WINDOW = "$window"
BUBBLE = frozenset(Kind) - BUSY - EXPOSED
"""All kinds of time that are neither work nor waiting for the network; see accounting.Shares."""


def of(metric: Metric, where: str = RUN) -> str:
    """Select a metric."""
    return f"{metric.name}{{{where}}}" if where else metric.name


def rate(metric: Metric, by: str, where: str = RUN, window: str = WINDOW) -> str:
    """Sum the rates per second of a counter over all but the labels `by`."""
    return f"sum by ({by}) (rate({of(metric, where)}[{window}]))"


def kinds(chosen: Collection[Kind]) -> str:
    """Return the matcher of kinds of time."""
    return f'kind=~"{"|".join(sorted(chosen))}"'


def share(chosen: Collection[Kind], by: str, where: str = RUN, window: str = WINDOW) -> str:
    """Return the share of time of these kinds, for all workers with the same labels `by`."""
    part = ",".join(filter(None, [where, kinds(chosen)]))
    seconds = catalogue.SECONDS
    return f"{rate(seconds, by, part, window)} / {rate(seconds, by, where, window)}"


def mean_step_s(where: str = RUN, window: str = WINDOW) -> str:
    """Return the mean duration of a step."""
    seconds = rate(catalogue.STEP_SECONDS, "run", where, window)
    return f"{seconds} / {rate(catalogue.STEPS, 'run', where, window)}"


def mfu(where: str = RUN, window: str = WINDOW) -> str:
    """Return model FLOPs over the peak FLOPs of both sides."""
    peak = f"sum by (run) ({of(catalogue.PEAK_FLOPS, where)})"
    return f"{rate(catalogue.MODEL_FLOPS, 'run', where, window)} / {peak}"


def against_median(value: str) -> str:
    """Return `value` of each worker over the median of its stage."""
    median = f"quantile by (run, stage) (0.5, {value})"
    return f"{value} / on (run, stage) group_left () {median}"


def age_s(metric: Metric, where: str = RUN) -> str:
    """Return the seconds since a moment that a gauge tells."""
    return f"time() - {of(metric, where)}"
