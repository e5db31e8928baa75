"""Rows that a token makes on its way to the experts, by hop, where all experts are as likely."""

from disagmoe.config.run import RunConfig
from disagmoe.config.shares import apportion
from disagmoe.costs.routing import loads
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.gateways import hosts
from disagmoe.schedule.layout import HOPS


def rows_per_token(config: RunConfig) -> dict[str, float]:
    """Return how many rows of a token each hop carries forward in a layer: distinct workers, or
    hosts, that it reaches, or its choices where rows go once to each expert."""
    model, layout = config.model, programs_for(config).spec.layout
    inter, intra = HOPS
    if config.parallel.dedupe == "none":
        return {inter: float(model.top_k)}
    workers = apportion(model.experts, config.parallel.expert_weights)
    parts = {inter: workers}
    if layout.two_hop:
        per_host = [sum(workers[rank] for rank in host) for host in hosts(layout)]
        parts = {inter: per_host, intra: workers}
    return {hop: sum(loads(model, part).rows) for hop, part in parts.items()}
