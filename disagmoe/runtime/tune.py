"""From a run's first steps to the config that the rest of it runs on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from disagmoe.config.costs import CostsConfig
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.config.shares import apportion
from disagmoe.runtime.balance import balanced, worst_of_ranks
from disagmoe.runtime.profile import Profile
from disagmoe.runtime.trace import WorkerTrace
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.layout import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What the traces of a run say about it."""

    config: RunConfig
    """Resolved, with costs, depth and attention shares filled in, and nothing left to profile."""
    seconds: dict[str, float]
    """What was measured, by the names of `OpCosts`; the other costs follow from the usual
    proportions."""
    expert_shares: list[float]
    """Shares under which the experts of a group would be done together; [] where those in use are
    near enough. They move parameters from worker to worker, so a run does not change them."""


def tune(config: RunConfig, steps: Iterable[Mapping[str, WorkerTrace]]) -> Tuned:
    """Return `config`, which is resolved and was profiled, tuned by the traces of `steps`."""
    profile = Profile.of(steps)
    shares, pace = _attention_shares(config, profile)
    seconds = profile.costs(pace)
    costs = OpCosts.from_seconds(seconds).to_dict()
    parallel = config.parallel.model_copy(
        update={"costs": CostsConfig(**costs), "attention_shares": shares, "profile": "off"}
    )
    tuned = config.model_copy(update={"parallel": parallel})
    return Tuned(
        config=resolve(tuned, cuda=config.cluster.device == "cuda"),
        seconds={name: seconds[name] for name in costs if name in seconds},
        expert_shares=_expert_shares(config, profile),
    )


def _attention_shares(config: RunConfig, profile: Profile) -> tuple[list[float], dict[str, float]]:
    """Return shares, and how many times as many sequences each worker has with them."""
    parallel = config.parallel
    if parallel.attention_shares:
        return parallel.attention_shares, {}
    size, busy_s = parallel.micro_batch_size, profile.attention_s()
    had = apportion(size, parallel.attention_weights)
    load = worst_of_ranks(busy_s)
    shares = balanced(size, had, [each / max(n, 1) for each, n in zip(load, had, strict=True)])
    if not shares:
        return [], {}
    has = apportion(size, shares)
    ranks = {name: Worker.parse(name).rank for name in busy_s}
    return shares, {name: has[rank] / had[rank] for name, rank in ranks.items()}


def _expert_shares(config: RunConfig, profile: Profile) -> list[float]:
    """By seconds per byte of rows: how many rows came is the router's doing, and will change."""
    experts = config.model.experts
    parts = apportion(experts, config.parallel.expert_weights)
    busy_s = profile.experts_s()
    if not all(profile.row_bytes.get(name) for name in busy_s):
        return []
    load = {name: seconds / profile.row_bytes[name] for name, seconds in busy_s.items()}
    return balanced(experts, parts, worst_of_ranks(load))
