"""What the schedule takes ops and transfers to cost, and how many micro-batches that asks for."""

import math

from pydantic import Field

from disagmoe.config.base import Section

SPARE = 1.5
"""Micro-batches in flight over the least that keeps every resource busy when all run in step; list
schedules come within 15 % of their bound with that many."""


class CostsConfig(Section):
    """How long ops and transfers of one micro-batch take, in any one unit: they decide the order of
    work, never its result. The defaults are proportions; a run that measures writes seconds."""

    embed: float = Field(default=0.05, ge=0)
    """Input embedding."""
    attn_fwd: float = Field(default=1.0, ge=0)
    """Attention, norms and router of one layer, forward."""
    experts_fwd: float = Field(default=1.0, ge=0)
    """Experts of one layer, forward."""
    head: float = Field(default=1.0, ge=0)
    """Final norm, LM head and loss, forward and backward."""
    head_eval: float = Field(default=0.4, ge=0)
    """The same in an evaluation, forward only."""
    experts_bwd: float = Field(default=2.0, ge=0)
    """Experts of one layer, backward."""
    experts_dgrad: float = Field(default=1.0, ge=0)
    """The part of it that others wait for; for `split_backward` only."""
    experts_wgrad: float = Field(default=1.0, ge=0)
    """The rest of it; for `split_backward` only."""
    attn_bwd: float = Field(default=2.0, ge=0)
    """Attention, norms and router of one layer, backward."""
    embed_bwd: float = Field(default=0.05, ge=0)
    """Input embedding, backward."""
    fan_out: float = Field(default=0.05, ge=0)
    """Handing rows out to the expert workers of a host; this and the next three for
    `dedupe = "node"` only."""
    gather_add: float = Field(default=0.05, ge=0)
    """Adding up what those return."""
    fan_out_bwd: float = Field(default=0.05, ge=0)
    """Handing gradients of outputs out to them."""
    gather_add_bwd: float = Field(default=0.05, ge=0)
    """Adding up the gradients that those return."""
    rows: float = Field(default=0.5, ge=0)
    """Transfer of tokens to the experts."""
    outputs: float = Field(default=0.5, ge=0)
    """Transfer of the experts' outputs to the next attention group."""
    residual: float = Field(default=0.25, ge=0)
    """Transfer of the residual stream; for `residual = "direct"` only."""
    doutputs: float = Field(default=0.5, ge=0)
    """Transfer of the gradients of the outputs."""
    drows: float = Field(default=0.5, ge=0)
    """Transfer of the gradients of the tokens and gate weights."""
    dresidual: float = Field(default=0.25, ge=0)
    """Transfer of the gradient of the residual stream; for `residual = "direct"` only."""
    fan_rows: float = Field(default=0.1, ge=0)
    """Transfer of tokens to the expert workers of a host; this and the next three for
    `dedupe = "node"` only."""
    near_outputs: float = Field(default=0.1, ge=0)
    """Transfer of their outputs inside the host."""
    fan_doutputs: float = Field(default=0.1, ge=0)
    """Transfer of the gradients of the outputs to them."""
    near_drows: float = Field(default=0.1, ge=0)
    """Transfer of the gradients of the tokens and gate weights inside the host."""


USUAL = CostsConfig()
"""Nothing is known of a run but the usual proportions."""


def ring_depth(costs: CostsConfig, *, groups: int, residual: str, colocated: bool) -> int:
    """Return how many micro-batches keep the ring busy, forward: a micro-batch passes a layer in
    `trip`, and the busiest resource of a group can take one every `period`.

    With both sides apart and equal this is ceil(1.5 * 2p (1 + Tc/T)).
    """
    attention, experts = costs.attn_fwd, costs.experts_fwd
    transfer = (costs.rows + costs.outputs) / 2
    if residual == "direct":
        transfer += costs.residual
    if colocated:
        trip = attention + experts + 2 * transfer
        period = max(attention + experts, 2 * transfer)
    else:
        trip = 2 * max(attention, experts) + 2 * transfer
        period = max(attention, experts, transfer)
    if period == 0:
        return math.ceil(SPARE * groups)
    return math.ceil(SPARE * groups * trip / period - 1e-9)
