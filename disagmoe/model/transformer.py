"""The whole network on one device without transport: what every layout must equal.

Letters: B sequences, S positions, T tokens, D hidden, V vocabulary, E experts, K top-k.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from disagmoe.config.model import ModelConfig
from disagmoe.config.train import LossConfig
from disagmoe.model import names, partition
from disagmoe.model.block import (
    AttentionOut,
    attention_half,
    dense_block,
    embed,
    head_logits,
    head_loss,
)
from disagmoe.model.dispatch import combine
from disagmoe.model.experts import Backend, experts_forward
from disagmoe.model.losses import (
    IGNORED,
    StepTotals,
    global_balance_loss,
    micro_batch_balance_loss,
    sequence_balance_loss,
    z_loss,
)
from disagmoe.model.mixing import Documents
from disagmoe.model.params import AttentionParams, ExpertParams, HeadParams, Store
from disagmoe.model.precision import add_to, wide
from disagmoe.model.rope import Rope
from disagmoe.model.router import Routing


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Input tokens and, at each position, the token to predict (or IGNORED); int64."""

    tokens_BS: torch.Tensor
    targets_BS: torch.Tensor
    documents: Documents | None = None
    """Whose tokens see each other; None is one document per sequence."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Losses and gradients of one step."""

    loss: torch.Tensor
    """Cross-entropy per valid target, without the other terms."""
    balance: torch.Tensor
    """Load-balancing loss, summed over layers, before its coefficient."""
    z: torch.Tensor
    """Router z-loss, summed over layers, before its coefficient."""
    grads: dict[str, torch.Tensor]
    """Gradient of loss + coefficients x terms by global name; fp32 (fp64 in fp64 models)."""
    routing: tuple[tuple[Routing, ...], ...]
    """Decisions by micro-batch and layer with experts, without graph."""


def step_totals(micro_batches: Sequence[MicroBatch]) -> StepTotals:
    """Count the step's divisors."""
    targets = [micro_batch.targets_BS for micro_batch in micro_batches]
    return StepTotals(
        valid_targets=sum(int((target != IGNORED).sum()) for target in targets),
        tokens=sum(target.numel() for target in targets),
        sequences=sum(target.shape[0] for target in targets),
        micro_batches=len(targets),
    )


def hidden_states(
    store: Store,
    config: ModelConfig,
    tokens_BS: torch.Tensor,
    *,
    documents: Documents | None = None,
    backend: Backend = "auto",
) -> tuple[torch.Tensor, tuple[Routing, ...]]:
    """Return the residual stream after the last layer [T, D] and the routing of every layer with
    experts."""
    h_BSD = embed(store[names.EMBED], tokens_BS)
    rope = Rope.of(config, tokens_BS.shape[1], h_BSD.dtype, h_BSD.device)
    routings: list[Routing] = []
    for layer in range(config.layers):
        h_BSD, routing = layer_output(
            store, config, h_BSD, rope, layer=layer, documents=documents, backend=backend
        )
        routings += [] if routing is None else [routing]
    return h_BSD.flatten(0, 1), tuple(routings)


def layer_output(
    store: Store,
    config: ModelConfig,
    h_BSD: torch.Tensor,
    rope: Rope,
    *,
    layer: int,
    documents: Documents | None = None,
    backend: Backend = "auto",
) -> tuple[torch.Tensor, Routing | None]:
    """Return the residual stream [B, S, D] after `layer`, of which alone `store` must hold the
    parameters, and its routing; None where it is dense."""
    params = AttentionParams.read(store, config, layer)
    if layer < config.dense_layers:
        return dense_block(params, h_BSD, config, rope, layer=layer, documents=documents), None
    out = attention_half(params, h_BSD, config, rope, layer=layer, documents=documents)
    y_TD = _all_experts(ExpertParams.read(store, config, layer), out, backend)
    token_T = torch.arange(y_TD.shape[0], device=y_TD.device)
    return combine(out.x_TD, [(token_T, y_TD)]).view_as(h_BSD), out.routing


def logits(
    store: Store,
    config: ModelConfig,
    tokens_BS: torch.Tensor,
    *,
    documents: Documents | None = None,
    backend: Backend = "auto",
) -> torch.Tensor:
    """Return next-token logits [B, S, V] in the type of the parameters."""
    h_TD, _ = hidden_states(store, config, tokens_BS, documents=documents, backend=backend)
    return head_logits(HeadParams.read(store, config), h_TD, config).view(*tokens_BS.shape, -1)


def reference_step(
    store: Store,
    config: ModelConfig,
    micro_batches: Sequence[MicroBatch],
    loss_config: LossConfig,
    *,
    backend: Backend = "auto",
    chunk_tokens: int = 0,
) -> StepResult:
    """Run forward and backward over all micro-batches of one step.

    `store` holds `partition.model_tensors(config)` and, where the family has them, balance biases,
    by local name, and is not changed. Gradients are summed over micro-batches in ascending order in
    fp32 (fp64 for fp64).
    """
    trained = [local.name for local in partition.model_tensors(config)]
    leaves = {name: store[name].detach().requires_grad_() for name in trained}
    kept = {name: store[name] for name in store.keys() - leaves.keys()}
    totals = step_totals(micro_batches)
    exact = wide(store[names.EMBED].dtype)
    grads = {name: torch.zeros_like(tensor, dtype=exact) for name, tensor in leaves.items()}
    losses = torch.zeros(3, dtype=exact, device=store[names.EMBED].device)
    routing_of: list[tuple[Routing, ...]] = []
    of_step = loss_config.aux_scope == "global"
    step_LE = _counts_of_step(store, config, micro_batches, backend) if of_step else []
    head = HeadParams.read(leaves, config)
    for micro_batch in micro_batches:
        h_TD, routings = hidden_states(
            leaves | kept,
            config,
            micro_batch.tokens_BS,
            documents=micro_batch.documents,
            backend=backend,
        )
        targets_T = micro_batch.targets_BS.flatten()
        loss = head_loss(head, h_TD, targets_T, config, totals, chunk_tokens=chunk_tokens)
        counts_LE = step_LE or [routing.count_choices() for routing in routings]
        terms = [
            _router_terms(routing, counts_E, micro_batch.tokens_BS.shape[0], loss_config, totals)
            for routing, counts_E in zip(routings, counts_LE, strict=True)
        ]
        balance = torch.stack([balance for balance, _ in terms]).sum()
        z = torch.stack([z for _, z in terms]).sum()
        total = loss + loss_config.aux_coef * balance + loss_config.z_coef * z
        new = torch.autograd.grad(total, list(leaves.values()))
        for name, grad in zip(leaves, new, strict=True):
            add_to(grads[name], grad)
        losses += torch.stack((loss, balance, z)).detach()
        routing_of.append(tuple(routing.detach() for routing in routings))
    return StepResult(
        loss=losses[0],
        balance=losses[1],
        z=losses[2],
        grads=_by_global_name(config, grads),
        routing=tuple(routing_of),
    )


def _all_experts(params: ExpertParams, out: AttentionOut, backend: Backend) -> torch.Tensor:
    tokens, top_k = out.routing.expert_TK.shape
    row_P = torch.arange(tokens, device=out.n_TD.device).repeat_interleave(top_k)
    expert_P, gate_P = out.routing.expert_TK.flatten(), out.routing.gate_TK.flatten()
    return experts_forward(params, out.n_TD, row_P, expert_P, gate_P, backend=backend)


@torch.no_grad()
def _counts_of_step(
    store: Store, config: ModelConfig, micro_batches: Sequence[MicroBatch], backend: Backend
) -> list[torch.Tensor]:
    """Return the choices of every expert over all micro-batches, by layer with experts."""
    routed = [
        hidden_states(store, config, one.tokens_BS, documents=one.documents, backend=backend)[1]
        for one in micro_batches
    ]
    layers = zip(*routed, strict=True)
    return [torch.stack([one.count_choices() for one in layer]).sum(0) for layer in layers]


def _router_terms(
    routing: Routing,
    counts_E: torch.Tensor,
    sequences: int,
    loss_config: LossConfig,
    totals: StepTotals,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return balance and z-loss of a layer; `counts_E` is of what the balance is over, if that is
    more than a sequence."""
    scope = loss_config.aux_scope
    if scope == "sequence":
        balance = sequence_balance_loss(routing, sequences, totals)
    elif scope == "micro_batch":
        tokens = routing.expert_TK.shape[0]
        balance = micro_batch_balance_loss(routing, counts_E, tokens, totals)
    else:
        balance = global_balance_loss(routing, counts_E, totals)
    return balance, z_loss(routing, totals)


def _by_global_name(
    config: ModelConfig, grads: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return gradients by global name, in the order of names.global_shapes."""
    split: dict[str, torch.Tensor] = {}
    for local in partition.model_tensors(config):
        split |= local.split(grads[local.name])
    return {name: split[name] for name in names.global_shapes(config)}
