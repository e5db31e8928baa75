"""Rows and bytes between attention and experts by hop, beside what uniform routing would make."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disagmoe.actors.events import StepResult
from disagmoe.config.run import RunConfig
from disagmoe.config.shares import apportion
from disagmoe.costs.routing import loads
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.gateways import hosts
from disagmoe.schedule.layout import HOPS


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
    tokens = statistics.median_low(step.tokens for step in steps)
    reach: Mapping[str, float] = {} if config is None else rows_per_token(config)
    return {
        hop: HopFigures(
            rows=statistics.median_low(step.hops[hop].rows for step in steps),
            exact_rows=statistics.median_low(step.hops[hop].exact_rows for step in steps),
            expected_rows=tokens * reach[hop] if hop in reach else None,
            nbytes=statistics.median_low(step.hops[hop].nbytes for step in steps),
        )
        for hop in steps[0].hops
    }


def rows_per_token(config: RunConfig) -> dict[str, float]:
    """Return how many rows of a token each hop carries forward in all layers, if each of a layer's
    experts were as likely: distinct workers, or hosts, that it reaches."""
    model, layout = config.model, programs_for(config).spec.layout
    if config.parallel.dedupe == "none":
        return {HOPS[0]: float(model.moe_layers * model.top_k)}
    workers = apportion(model.experts, config.parallel.expert_weights)
    parts = {HOPS[0]: workers}
    if layout.two_hop:
        per_host = [sum(workers[rank] for rank in host) for host in hosts(layout)]
        parts = {HOPS[0]: per_host, HOPS[1]: workers}
    return {hop: model.moe_layers * sum(loads(model, part).rows) for hop, part in parts.items()}
