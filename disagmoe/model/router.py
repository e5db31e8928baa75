"""Top-k routing of tokens to experts.

Letters: T tokens, D hidden, E experts, K top-k.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

from disagmoe.model.device import count_values
from disagmoe.model.precision import wide


@dataclass(frozen=True, slots=True)
class Routing:
    """Where each token goes and with which weight. Decided once in the forward pass and stored."""

    expert_TK: torch.Tensor
    """Chosen experts as int64, the most probable first."""
    gate_TK: torch.Tensor
    """Weight of each choice; fp32 (fp64 in fp64 models)."""
    probs_TE: torch.Tensor
    """Softmax over all experts, for the balance loss."""
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
    weight_ED: torch.Tensor,
    n_TD: torch.Tensor,
    *,
    top_k: int,
    renormalise: bool,
    expert_TK: torch.Tensor | None = None,
) -> Routing:
    """Choose `top_k` experts per token by softmax probability; differentiable in both tensors.

    Where `expert_TK` is given, those are chosen, with the weights that the router has for them.

    Logits, softmax and choice are computed in fp32 (fp64 for fp64). Among equal probabilities the
    lower expert index wins, on every device. `renormalise` divides the chosen probabilities by
    their sum (Mixtral always; Qwen3-MoE by `norm_topk_prob`).
    """
    exact = wide(n_TD.dtype)
    logits_TE = n_TD.to(exact) @ weight_ED.to(exact).T
    probs_TE = torch.softmax(logits_TE, dim=-1)
    if expert_TK is None:
        # Not torch.topk: its order among equal values is unspecified and differs between devices.
        order_TE = torch.sort(probs_TE.detach(), dim=-1, descending=True, stable=True).indices
        expert_TK = order_TE[:, :top_k].contiguous()
    gate_TK = probs_TE.gather(1, expert_TK)
    if renormalise:
        gate_TK = gate_TK / gate_TK.sum(dim=-1, keepdim=True)
    return Routing(expert_TK, gate_TK, probs_TE, logits_TE)


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
