"""What a bench of overlap has shown: ratios, what bounds allow, and whether to believe it."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from disagmoe.bench.limits import wire_s
from disagmoe.bench.overlap import Comparison, Measured
from disagmoe.bench.sample import Sample, medians
from disagmoe.bench.scenarios import AF_PIPE, EP_1F1B, EP_OVERLAP, HEADLINE, UNEQUAL

EP_1F1B_TOLERANCE = 1.10
EP_OVERLAP_TOLERANCE = 1.15
"""Step over lower bound at which an opponent still counts as well made."""
LOSS_TOLERANCE = 0.01
"""Relative. A bf16 value has 8 bits; systems round in other places (partial sums of experts travel
in bf16, micro-batches differ), and after several updates a loss may be off in its third digit."""


def ratio(comparison: Comparison, opponent: str) -> float:
    """Step time of `opponent` over that of the split: above 1 the split is faster."""
    systems = comparison.systems
    return systems[opponent].step_s / systems[AF_PIPE].step_s


def allowed(comparison: Comparison, opponent: str) -> float:
    """The same ratio of lower bounds."""
    systems = comparison.systems
    return systems[opponent].lower_bound_s / systems[AF_PIPE].lower_bound_s


def best_colocated(comparison: Comparison, *, shared: bool = False) -> str | None:
    """The fastest of the colocated systems as they are used today, which give all hosts equal
    shares; or with `shared` of those that do not, if there are any."""
    candidates = [
        name
        for name, measured in comparison.systems.items()
        if name != AF_PIPE and bool(measured.system.shares) == shared
    ]
    return min(candidates, key=lambda name: comparison.systems[name].step_s, default=None)


def checks(comparisons: Sequence[Comparison]) -> dict[str, bool]:
    """Return what must hold for the comparison to mean anything, by name."""
    found: dict[str, bool] = {}
    for comparison in comparisons:
        name = _name(comparison)
        systems = comparison.systems
        found[f"{name}: workers pinned to their host's core"] = comparison.pinned
        found[f"{name}: same losses"] = losses_agree(
            [measured.samples for measured in systems.values()]
        )
        if comparison.scenario.slow_host_cores is None:
            found[f"{name}: {EP_1F1B} within 10 % of compute plus bytes over rate"] = (
                over_floor(systems[EP_1F1B]) <= EP_1F1B_TOLERANCE
            )
            found[f"{name}: {EP_OVERLAP} within 15 % of the larger of the two"] = (
                over_floor(systems[EP_OVERLAP]) <= EP_OVERLAP_TOLERANCE
            )
    return found


def over_floor(measured: Measured) -> float:
    """Step over compute plus bytes over rate, or over the larger of the two."""
    return measured.step_s / measured.floor_s


def losses_agree(systems: Sequence[Sequence[Sample]]) -> bool:
    """Whether the samples of all systems show the same loss in every round, up to rounding."""
    rounds = zip(*([sample.loss for sample in samples] for samples in systems), strict=True)
    return all(max(losses) - min(losses) <= LOSS_TOLERANCE * max(losses) for losses in rounds)


def as_json(comparisons: Sequence[Comparison], rounds: int) -> dict[str, Any]:
    """Return all figures as one JSON object."""
    found = checks(comparisons)
    result: dict[str, Any] = {"valid": all(found.values()), "checks": found, "rounds": rounds}
    for comparison in comparisons:
        name = comparison.scenario.name
        if name == HEADLINE and comparison.multiple == 1.0:
            result["headline"] = {
                "rate_mbit": comparison.rate_mbit,
                "vs_ep": ratio(comparison, EP_1F1B),
                "vs_ep_allowed": allowed(comparison, EP_1F1B),
                "vs_ep_overlap": ratio(comparison, EP_OVERLAP),
                "vs_ep_overlap_allowed": allowed(comparison, EP_OVERLAP),
                "ep_exposed_share": comparison.systems[EP_1F1B].exposed_share,
            }
        if name == UNEQUAL:
            result["unequal"] = _unequal(comparison)
    result["scenarios"] = [_comparison(comparison) for comparison in comparisons]
    return result


def _unequal(comparison: Comparison) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if today := best_colocated(comparison):
        figures["best_colocated"] = today
        figures["vs_best_colocated"] = ratio(comparison, today)
        figures["allowed"] = allowed(comparison, today)
    if shared := best_colocated(comparison, shared=True):
        figures["best_with_shares"] = shared
        figures["vs_best_with_shares"] = ratio(comparison, shared)
        figures["allowed_with_shares"] = allowed(comparison, shared)
    return figures


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "name": comparison.scenario.name,
        "about": comparison.scenario.about,
        "config": comparison.scenario.config,
        "rate_mbit": comparison.rate_mbit,
        "multiple": comparison.multiple,
        "slow_host_cores": comparison.scenario.slow_host_cores,
        "vs_ep": ratio(comparison, EP_1F1B),
        "vs_ep_allowed": allowed(comparison, EP_1F1B),
        "vs_ep_overlap": ratio(comparison, EP_OVERLAP),
        "vs_ep_overlap_allowed": allowed(comparison, EP_OVERLAP),
        "systems": {
            name: _system(measured, comparison.rate_mbit)
            for name, measured in comparison.systems.items()
        },
    }


def _system(measured: Measured, rate_mbit: float) -> dict[str, Any]:
    samples = measured.samples
    return {
        "micro_batch_size": measured.tuned.micro_batch_size,
        "in_flight": measured.tuned.compiled.timeline.in_flight,
        "planned_s": measured.tuned.compiled.timeline.makespan,
        "costs": measured.tuned.costs.to_dict(),
        "step_s": measured.step_s,
        "steps_s": [sample.step_s for sample in samples],
        "lower_bound_s": measured.lower_bound_s,
        "over_lower_bound": 1 / measured.share_of_bound,
        "floor_s": measured.floor_s,
        "over_floor": over_floor(measured),
        "busy_share_of_allowed": measured.share_of_bound,
        "compute_s": list(measured.load.compute_s),
        "rest_s": list(measured.load.rest_s),
        "wire_s": wire_s(measured.load, rate_mbit),
        "link_bytes": measured.load.link_bytes,
        "links": [asdict(link) for link in samples[-1].links],
        "shares": measured.shares,
        "cpu_s": medians([sample.cpu for sample in samples]),
        "losses": [sample.loss for sample in samples],
    }


def _name(comparison: Comparison) -> str:
    return f"{comparison.scenario.name} at {comparison.rate_mbit:.0f} Mbit/s"
