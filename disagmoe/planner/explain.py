"""A plan in words and as one JSON object: what was chosen, why, and what came next."""

import random
from dataclasses import asdict
from typing import Any

from disagmoe.config.parallel import COLOCATED
from disagmoe.costs.hops import rows_per_token
from disagmoe.planner.candidates import ways
from disagmoe.planner.search import Choice, Plan
from disagmoe.planner.two_phase import (
    Allocation,
    Work,
    exact,
    local_search,
    printed_intensities,
)
from disagmoe.schedule.layout import HOPS
from disagmoe.simulator.report import memory_json, memory_lines
from disagmoe.units import format_seconds

_MS = 1e3
TAKERS = {"none": "expert", "rank": "worker", "node": "host"}
"""What a row goes to once, by `parallel.dedupe`."""


def as_json(plan: Plan) -> dict[str, Any]:
    """The choice, its bound and reason, and the runners-up."""
    best = plan.best
    return {
        "choice": _choice_json(best),
        "reason": reason(plan),
        "other_way": None if plan.other_way is None else _choice_json(plan.other_way),
        "bound": {
            "name": best.bound.name,
            "gap": best.gap,
            "roofline_step_s": best.estimate.step_s,
            "binding": _binding(best),
            "roofs_s": asdict(best.estimate.roofs),
        },
        "paper": _paper_json(plan),
        "memory": [memory_json(one) for one in best.memory],
        "runners_up": [_choice_json(one) for one in plan.choices[1:]],
        "searched": {
            "divisions": plan.divisions,
            "estimates": plan.estimates,
            "fitting": plan.fitting,
            "list_scheduled": plan.planned,
            "simulated": len(plan.choices),
        },
    }


def _paper_json(plan: Plan) -> dict[str, Any] | None:
    """What the paper's own search would do with a pair of groups of the best split; None where none
    fits."""
    choice = next((one for one in plan.choices if one.schedule not in COLOCATED), None)
    if choice is None:
        return None
    division, roofs = choice.estimate.division, choice.estimate.roofs
    workers = division.attention_workers + division.expert_workers
    cards = round(
        division.attention_workers * division.attention_nics
        + division.expert_workers * division.expert_nics
    )
    if cards < 2:
        return None
    own = division.attention_workers * division.attention_nics / division.micro_batch_size
    work = Work(
        attention=roofs.attention * division.attention_workers / division.micro_batch_size,
        experts=roofs.experts * division.expert_workers / division.micro_batch_size,
        network=roofs.attention_network * own,
    )
    seed = Allocation(workers // 2, workers - workers // 2, cards // 2, cards - cards // 2)
    found = {"two_phase": exact(work, workers, cards), "local_search": _searched(work, seed)}
    printed = printed_intensities(choice.config.model, choice.config.train.sequence_length)
    return {
        "printed_intensity": dict(zip(("attention", "experts"), printed, strict=True)),
        **{name: {**asdict(one), "period_s": one.period_s(work)} for name, one in found.items()},
    }


def _searched(work: Work, seed: Allocation) -> Allocation:
    return local_search(work, seed, random.Random(0))


def _choice_json(choice: Choice) -> dict[str, Any]:
    division = choice.estimate.division
    return {
        **asdict(division),
        "rows_per_token": rows_per_token(choice.config),
        "in_flight": choice.estimate.in_flight,
        "micro_batches": choice.micro_batches,
        "micro_batches_simulated": choice.simulated,
        "step_s": choice.step_s,
        "tokens_per_s": choice.tokens_per_s,
        "gap": choice.gap,
        **asdict(choice.shares),
    }


def as_text(plan: Plan) -> str:
    """What a person reads."""
    best = plan.best
    return "\n".join(
        (
            reason(plan),
            "",
            f"per layer and micro-batch, forward and backward: {_roofs(best)}",
            f"searched {plan.divisions} divisions, {plan.estimates} with micro-batches in flight, "
            f"of which {plan.fitting} fit; {plan.planned} list-scheduled, {len(plan.choices)} "
            "simulated:",
            "",
            *_table(plan),
            "",
            *memory_lines(best.memory),
        )
    )


def _roofs(choice: Choice) -> str:
    roofs = choice.estimate.roofs
    if choice.schedule in COLOCATED:
        with_transfers = " and waits for its all-to-alls" if choice.schedule == "ep_1f1b" else ""
        return (
            f"a worker computes{with_transfers} for {_MS * roofs.attention:.2f} ms; its network "
            f"cards are busy for {_MS * roofs.attention_network:.2f} ms"
        )
    return (
        f"attention computes {_MS * roofs.attention:.2f} ms, experts {_MS * roofs.experts:.2f} ms; "
        f"network cards of attention workers are busy for {_MS * roofs.attention_network:.2f} ms, "
        f"of expert workers for {_MS * roofs.expert_network:.2f} ms"
    )


def _binding(choice: Choice) -> str:
    """The highest roof; colocated workers have one of compute, and one of the network."""
    binding = choice.estimate.roofs.binding
    if choice.schedule not in COLOCATED:
        return binding
    if not binding.startswith("compute"):
        return "the network"
    return "compute with all-to-alls" if choice.schedule == "ep_1f1b" else "compute"


def reason(plan: Plan) -> str:
    """Why the choice was made."""
    best = plan.best
    text = (
        f"{best.schedule}, {best.estimate.division.summary}, {best.estimate.in_flight} of "
        f"{best.micro_batches} micro-batches in flight: {best.tokens_per_s:,.0f} tokens/s, step "
        f"{format_seconds(best.step_s)}; the highest roof is {_binding(best)}, and its simulated "
        f"time is {100 * (best.gap - 1):.1f} % above its bound "
        f"({best.bound.name})"
    )
    return f"{text}. {_against_the_other_layout(plan)}. {_why_this_way(plan)}"


def _why_this_way(plan: Plan) -> str:
    """Why rows go to workers or to hosts."""
    best, other = plan.best, plan.other_way
    rows = rows_per_token(best.config)[HOPS[0]]
    way = TAKERS[best.estimate.division.dedupe]
    text = f"Rows go once to each {way}, {rows:.2f} of a token in a layer"
    if best.estimate.division.dedupe == "none":
        return f"{text}, as is asked for"
    if other is None:
        same = ", which is the same as to each host"
        alone = len(ways(best.config, best.estimate.division)) == 1
        return text + (same if alone else "; the other way does not fit")
    there = rows_per_token(other.config)[HOPS[0]]
    slower, taker = other.step_s / best.step_s, TAKERS[other.estimate.division.dedupe]
    return (
        f"{text}; to each {taker} it would be {there:.2f}, and the step take {slower:.2f} times "
        f"as long ({other.estimate.roofs.binding} the highest roof, "
        f"here {best.estimate.roofs.binding})"
    )


def _against_the_other_layout(plan: Plan) -> str:
    best = plan.best
    colocated = best.schedule in COLOCATED
    others = [one for one in plan.choices if (one.schedule in COLOCATED) != colocated]
    if plan.two_kinds:
        return "Both sides have machines of their own, so colocated layouts were left out"
    if not others:
        missing = "split" if colocated else "colocated"
        return f"No {missing} layout fits into memory"
    other = others[0]
    faster = other.step_s / best.step_s
    if colocated:
        return (
            "Colocated expert parallelism is better here: the best split layout "
            f"({other.estimate.division.summary}) takes {faster:.2f} times as long"
        )
    return (
        "The split is better here: the best colocated layout "
        f"({other.schedule}, {other.estimate.division.summary}) takes {faster:.2f} times as long"
    )


def _table(plan: Plan) -> list[str]:
    lines = [
        f"{'schedule':<11}{'workers':<42}{'size':>5}{'rows to':>9}{'in flight':>10}"
        f"{'cards A':>8}{'cards F':>8}{'step':>9}{'tokens/s':>12}{'gap':>8}"
    ]
    for one in plan.choices:
        division = one.estimate.division
        lines.append(
            f"{one.schedule:<11}{division.summary:<42}{division.micro_batch_size:>5}"
            f"{TAKERS[division.dedupe]:>9}{one.estimate.in_flight:>10}{division.attention_nics:>8.2f}"
            f"{division.expert_nics:>8.2f}{format_seconds(one.step_s):>9}"
            f"{one.tokens_per_s:>12,.0f}{100 * (one.gap - 1):>6.1f} %"
        )
    return lines
