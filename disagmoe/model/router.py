"""Top-k routing of tokens to experts.

Letters: T tokens, D hidden, E experts, K top-k, G groups of experts.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

from disagmoe.config.families import renormalises, traits
from disagmoe.config.model import ModelConfig
from disagmoe.model.device import count_values
from disagmoe.model.params import RouterParams
from disagmoe.model.precision import wide

_LEAST_SUM = 1e-20
"""Added to the sum of sigmoid scores before it divides them, as DeepSeek-V3's code does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How scores become choices and gates."""

    top_k: int
    renormalise: bool
    """Divide the chosen scores by their sum."""
    scores: Literal["softmax", "sigmoid"] = "softmax"
    scaling: float = 1.0
    """Factor of the gates."""
    groups: int = 1
    top_groups: int = 1
    """Choices come from so many of the groups."""
    group_score: Literal["best", "best two"] = "best"

    @classmethod
    def of(cls, config: ModelConfig) -> "Rule":
        """Return the rule of a model."""
        own = traits(config)
        return cls(
            top_k=config.top_k,
            renormalise=renormalises(config),
            scores=own.scores,
            scaling=config.routed_scaling,
            groups=config.expert_groups,
            top_groups=config.top_groups,
            group_score=own.group_score,
        )


@dataclass(frozen=True, slots=True)
class Routing:
    """Where each token goes and with which weight. Decided once in the forward pass and stored."""

    expert_TK: torch.Tensor
    """Chosen experts as int64, the most probable first."""
    gate_TK: torch.Tensor
    """Weight of each choice; fp32 (fp64 in fp64 models)."""
    probs_TE: torch.Tensor
    """Softmax over all experts, or sigmoids divided by their sum, for the balance loss."""
    logits_TE: torch.Tensor
    """Router logits, for the z-loss."""

    def count_choices(self) -> torch.Tensor:
        """Return the number of choices that fell on each expert [E], as int64."""
        return count_values(self.expert_TK.flatten(), self.probs_TE.shape[1])

    def detach(self) -> "Routing":
        """Return the same values without their graph."""
        return Routing(
            self.expert_TK, self.gate_TK.detach(), self.probs_TE.detach(), self.logits_TE.detach()
        )


def route(
    params: RouterParams, n_TD: torch.Tensor, rule: Rule, *, expert_TK: torch.Tensor | None = None
) -> Routing:
    """Choose experts per token; differentiable in the weight, its bias and the input.

    Where `expert_TK` is given, those are chosen, with the weights that the router has for them.

    Logits, scores and choice are computed in fp32 (fp64 for fp64). A balancing bias is added for
    the choice alone, never to the gates. Among equal scores the lower expert index wins, on every
    device. Softmax over the chosen logits (GPT-OSS) is the softmax of all, renormalised.
    """
    exact = wide(n_TD.dtype)
    logits_TE = n_TD.to(exact) @ params.weight_ED.to(exact).T
    if params.bias_E is not None:
        logits_TE = logits_TE + params.bias_E.to(exact)
    scores_TE = _scores(logits_TE, rule)
    if expert_TK is None:
        # Not torch.topk: its order among equal values is unspecified and differs between devices.
        eligible_TE = _eligible(_preferences(scores_TE, params), rule)
        order_TE = torch.sort(eligible_TE, dim=-1, descending=True, stable=True).indices
        expert_TK = order_TE[:, : rule.top_k].contiguous()
    gate_TK = scores_TE.gather(1, expert_TK)
    if rule.renormalise:
        least = _LEAST_SUM if rule.scores == "sigmoid" else 0.0
        gate_TK = gate_TK / (gate_TK.sum(dim=-1, keepdim=True) + least)
    if rule.scaling != 1.0:
        gate_TK = gate_TK * rule.scaling
    probs_TE = scores_TE
    if rule.scores == "sigmoid":  # DeepSeek-V3 (arXiv:2412.19437) equation 19
        probs_TE = scores_TE / (scores_TE.sum(dim=-1, keepdim=True) + _LEAST_SUM)
    return Routing(expert_TK, gate_TK, probs_TE, logits_TE)


def _scores(logits_TE: torch.Tensor, rule: Rule) -> torch.Tensor:
    return logits_TE.sigmoid() if rule.scores == "sigmoid" else logits_TE.softmax(dim=-1)


def _preferences(scores_TE: torch.Tensor, params: RouterParams) -> torch.Tensor:
    """What experts are chosen by."""
    scores_TE = scores_TE.detach()
    return scores_TE if params.balance_E is None else scores_TE + params.balance_E


def _eligible(preference_TE: torch.Tensor, rule: Rule) -> torch.Tensor:
    """Return `preference_TE` with minus infinity in groups that are not chosen: those with the
    best expert (DeepSeek-V2, arXiv:2405.04434 section 2.2.2) or the best two (DeepSeek-V3)."""
    if rule.groups == rule.top_groups:
        return preference_TE
    group_TG = _group_scores(preference_TE, rule)
    order_TG = torch.sort(group_TG, dim=-1, descending=True, stable=True).indices
    chosen_TG = torch.zeros_like(group_TG, dtype=torch.bool)
    chosen_TG.scatter_(1, order_TG[:, : rule.top_groups], True)
    members = preference_TE.shape[1] // rule.groups
    kept_TE = chosen_TG.repeat_interleave(members, dim=1)
    return preference_TE.masked_fill(~kept_TE, float("-inf"))


def _group_scores(preference_TE: torch.Tensor, rule: Rule) -> torch.Tensor:
    tokens, experts = preference_TE.shape
    by_group_TGN = preference_TE.view(tokens, rule.groups, experts // rule.groups)
    best = 2 if rule.group_score == "best two" else 1
    return by_group_TGN.sort(dim=-1, descending=True).values[..., :best].sum(dim=-1)


def least_margin(params: RouterParams, logits_TE: torch.Tensor, rule: Rule) -> float:
    """Return how near the closest decision was: the smallest distance between the last that was
    chosen and the first that was not, of experts and of groups, over all tokens; infinite where
    there is nothing to choose."""
    preference_TE = _preferences(_scores(logits_TE, rule), params)
    gaps = [_gap(_eligible(preference_TE, rule), rule.top_k)]
    if rule.groups > rule.top_groups:
        gaps.append(_gap(_group_scores(preference_TE, rule), rule.top_groups))
    return min(gaps)


def _gap(values_TN: torch.Tensor, chosen: int) -> float:
    if chosen == values_TN.shape[1] or not len(values_TN):
        return float("inf")
    ordered = values_TN.sort(dim=-1, descending=True).values
    return float((ordered[:, chosen - 1] - ordered[:, chosen]).min())


@lru_cache(maxsize=512)
def draw_experts(
    positions: int, experts: int, top_k: int, *, layer: int, device: torch.device
) -> torch.Tensor:
    """Return experts drawn at random for each position of a sequence, as int64 [S, K].

    All sets of `top_k` experts are equally likely. The draw depends on the layer and the position
    alone, so that it is the same in every layout. It is kept and copied to the device once; nobody
    may write to it.
    """
    generator = torch.Generator().manual_seed(layer)
    order_SE = torch.rand(positions, experts, generator=generator, dtype=torch.float64).argsort(1)
    return order_SE[:, :top_k].contiguous().to(device)
