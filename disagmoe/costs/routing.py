"""Where tokens go: expected choices and rows of each expert worker, balanced and skewed.

A token chooses k of E experts. A *row* is a token's hidden state at one receiver; it stands for all
of the token's choices there where copies are made once per worker (or node), and for one choice
where they are not.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from disagmoe.config.model import ModelConfig


@dataclass(frozen=True, slots=True)
class Loads:
    """What one token means for each part of the experts."""

    choices: tuple[float, ...]
    """Expected choices in each part; they add up to top-k."""
    rows: tuple[float, ...]
    """Chance that there is one at all."""


def popularity(model: ModelConfig, skew: float, layer: int) -> tuple[float, ...]:
    """Return the chance of each expert of `layer` to be among a token's choices: k / E each, or
    with `skew` > 0 in proportion to 1 / rank^skew (Zipf), none above 1. Which experts are popular
    differs from layer to layer."""
    experts, top_k = model.experts, model.top_k
    if skew == 0:
        return (top_k / experts,) * experts
    weights = [rank**-skew for rank in range(1, experts + 1)]
    chances = _capped(weights, top_k)
    random.Random(layer).shuffle(chances)
    return tuple(chances)


def _capped(weights: Sequence[float], total: int) -> list[float]:
    """Scale falling weights so that they add up to `total`, those above 1 held at it."""
    held = 0
    while True:
        rest = sum(weights[held:])
        scale = (total - held) / rest if rest else 0.0
        if held == len(weights) or weights[held] * scale <= 1:
            return [1.0] * held + [weight * scale for weight in weights[held:]]
        held += 1


def loads(
    model: ModelConfig, parts: Sequence[int], chances: Sequence[float] | None = None
) -> Loads:
    """Return the loads of parts of the experts (workers, or nodes), which lie one after the other.

    With equal chances a part of n experts has none of a token's k choices with probability
    C(E - n, k) / C(E, k). Where experts are more or less popular than k / E, a part counts as one
    among as many experts as make its own average. Limited routing (`top_groups`) keeps a token to
    as many parts as its groups of experts reach.
    """
    experts, top_k = model.experts, model.top_k
    choices, rows, start = [], [], 0
    missed: dict[tuple[int, float], float] = {}  # parts are mostly alike
    for size in parts:
        chosen = top_k * size / experts if chances is None else sum(chances[start : start + size])
        start += size
        choices.append(chosen)
        if (size, chosen) not in missed:
            none = _missed(top_k * size / chosen, size, top_k) if chosen else 1.0
            missed[size, chosen] = none
        rows.append(1 - missed[size, chosen])
    reach = sum(rows)
    most = _reachable(model, len(parts))
    if reach > most:
        rows = [row * most / reach for row in rows]
    return Loads(tuple(choices), tuple(rows))


def _missed(experts: float, size: int, top_k: int) -> float:
    """C(experts - size, top_k) / C(experts, top_k), for any number of experts."""
    missed = 1.0
    for drawn in range(top_k):
        missed *= max(0.0, (experts - size - drawn) / (experts - drawn))
    return missed


def _reachable(model: ModelConfig, parts: int) -> float:
    if model.top_groups == model.expert_groups:
        return float(parts)
    return float(model.top_groups * -(-parts // model.expert_groups))
