"""Rows and bytes between attention and experts by hop, beside what uniform routing would make."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disagmoe.actors.events import StepResult
from disagmoe.config.run import RunConfig
from disagmoe.costs.hops import rows_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class HopFigures:
    """One hop per step."""

    rows: int
    """Rows on their way to the experts."""
    exact_rows: int
    """Rows that the routing decisions ask for."""
    expected_rows: float | None
    """Rows that uniform routing would ask for; None where no config tells."""
    nbytes: int
    """Payloads of both ways, forward and backward; what a worker sends itself is not counted."""


def hop_figures(steps: Sequence[StepResult], config: RunConfig | None) -> dict[str, HopFigures]:
    """Return the medians of `steps` by hop; `config` is the resolved one of the run."""
    if not steps:
        return {}
    reach: Mapping[str, float] = {} if config is None else rows_per_token(config)
    layers = 0 if config is None else config.model.moe_layers
    visits = layers * statistics.median_low(step.tokens for step in steps)
    return {
        hop: HopFigures(
            rows=statistics.median_low(step.hops[hop].rows for step in steps),
            exact_rows=statistics.median_low(step.hops[hop].exact_rows for step in steps),
            expected_rows=visits * reach[hop] if hop in reach else None,
            nbytes=statistics.median_low(step.hops[hop].nbytes for step in steps),
        )
        for hop in steps[0].hops
    }
