"""The paper's own division of workers and network cards (arXiv:2605.11005 section 4.3), to compare.

T_a = max(C_a / (M P), V / (M_a B)) and T_f = max(C_f / (N P), V / (M_f B)), with M + N = W workers
and M_a + M_f cards. Phase 1 finds the lowest max(T_a, T_f); phase 2 takes, of all that reach it,
the one with the most MFU, which is the one with the fewest workers. The paper's algorithm 1 goes
there from a seed by trying some neighbours at a time; `exact` tries everything.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from disagmoe.config.model import ModelConfig

RADIUS, SAMPLES = 2, 8
"""Of algorithm 1; the paper's values are not known."""
_ALIKE = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a sequence asks of one pair of groups in one layer, forward and backward."""

    attention: float
    """Seconds on one worker (C_a / P)."""
    experts: float
    network: float
    """Seconds on one card, each way (V / B)."""


@dataclass(frozen=True, slots=True, order=True)
class Allocation:
    """Workers and cards of both sides."""

    attention_workers: int
    expert_workers: int
    attention_cards: int
    expert_cards: int

    def period_s(self, work: Work) -> float:
        """Seconds between sequences: max(T_a, T_f)."""
        return max(
            work.attention / self.attention_workers,
            work.experts / self.expert_workers,
            work.network / self.attention_cards,
            work.network / self.expert_cards,
        )

    @property
    def workers(self) -> int:
        """Of both sides."""
        return self.attention_workers + self.expert_workers


def printed_intensities(model: ModelConfig, length: int) -> tuple[float, float]:
    """FLOPs per byte of attention and experts as the paper prints them: (H (2 + 2/g) + 4 s) / (2 k)
    and 2 D_e, g query heads per key head. Both ignore that attention is causal and that an expert
    has three products, so they are shown beside our counts and used for nothing else."""
    shared = model.heads / model.kv_heads
    attention = (model.hidden * (2 + 2 / shared) + 4 * length) / (2 * model.top_k)
    return attention, 2.0 * model.expert_width


def exact(work: Work, workers: int, cards: int) -> Allocation:
    """Both phases by trying every number of at most `workers`; both sides need as much of the
    network, so that half of the `cards` on each is best for any of them."""
    own = min(range(1, cards), key=lambda count: 1 / count + 1 / (cards - count))
    every = [
        Allocation(attention, used - attention, own, cards - own)
        for used in range(2, workers + 1)
        for attention in range(1, used)
    ]
    lowest = min(one.period_s(work) for one in every)
    best = [one for one in every if one.period_s(work) <= lowest * _ALIKE]
    return min(best, key=lambda one: (one.workers, one))


def local_search(work: Work, seed: Allocation, draw: random.Random) -> Allocation:
    """Algorithm 1: from `seed` to the best of some neighbours, until none of them is better; all
    workers and cards of the seed stay in use."""
    here = seed
    while True:
        around = list(_neighbours(here))
        tried = draw.sample(around, min(SAMPLES, len(around)))
        best = min(tried, key=lambda one: (one.period_s(work), one), default=here)
        if best.period_s(work) * _ALIKE >= here.period_s(work):
            return here
        here = best


def _neighbours(one: Allocation) -> Iterator[Allocation]:
    steps = range(-RADIUS, RADIUS + 1)
    for moved in steps:
        for lent in steps:
            found = Allocation(
                one.attention_workers + moved,
                one.expert_workers - moved,
                one.attention_cards + lent,
                one.expert_cards - lent,
            )
            counts = (
                found.attention_workers,
                found.expert_workers,
                found.attention_cards,
                found.expert_cards,
            )
            if min(counts) >= 1 and found != one:
                yield found
