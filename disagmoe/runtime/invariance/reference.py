"""The one-process reference of a run, step by step, and inputs whose routing is clear-cut."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from disagmoe.config.run import RunConfig
from disagmoe.data.batch import IGNORED, Batch, ring_micro_batches
from disagmoe.errors import ConfigError
from disagmoe.model.init import initial_store
from disagmoe.model.params import AttentionParams
from disagmoe.model.partition import LocalTensor, balance_tensors, model_tensors
from disagmoe.model.precision import wide
from disagmoe.model.router import Rule, least_margin
from disagmoe.model.transformer import MicroBatch, StepResult, hidden_states, reference_step
from disagmoe.optim.adamw import Optimizer
from disagmoe.optim.balance import move_balance
from disagmoe.optim.clip import clip_scale, squared_norm
from disagmoe.optim.groups import rule_of_tensor
from disagmoe.optim.lr import learning_rate
from disagmoe.runtime.update import TrainingState

TOP_K_GAP = 1e-4
"""Least difference between the last chosen and the first rejected router probability: far above
the rounding of fp32, so that any routing flip is a fault."""

_TRIES_PER_SEQUENCE = 50


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """One step of the reference: what went in, and what every layout must get."""

    before: TrainingState
    batch: Batch
    loss: float
    balance: float
    z: float
    norm: float
    grads: dict[str, torch.Tensor]
    choices: tuple[tuple[torch.Tensor, ...], ...]
    """Experts chosen [T, K] by micro-batch and layer."""
    after: TrainingState


def reference_run(config: RunConfig, dtype: torch.dtype, steps: int) -> list[ReferenceStep]:
    """Train `steps` steps in one process, on inputs made for it. Deterministic.

    Raises ConfigError when no input with a clear-cut routing is found.
    """
    tensors = model_tensors(config.model)
    train = config.train
    store = initial_store(tensors, seed=train.seed, std=config.model.init_std, dtype=dtype)
    rules = {local.name: rule_of_tensor(local, train.optimizer) for local in tensors}
    optimizer = Optimizer(store, train.optimizer, rules)
    balances = initial_balances(config, dtype)
    generator = torch.Generator().manual_seed(train.seed)
    out = []
    for step in range(steps):
        batch = _batch(config, store | balances, generator)
        cut = cut_batch(batch, config)
        before = _state(tensors, optimizer, balances)
        result = reference_step(
            store | balances,
            config.model,
            [MicroBatch(part.tokens_BS, part.targets_BS, part.documents) for part in cut],
            train.loss,
        )
        grads = {name: grad.clone() for name, grad in result.grads.items()}
        norm = math.sqrt(squared_norm(result.grads))
        optimizer.step(
            {local.name: local.join(result.grads) for local in tensors},
            learning_rate(step, train),
            clip_scale(norm, train.optimizer.clip_norm),
        )
        choices = _choices(result)
        for local, choices_E in zip(balances, choices, strict=False):
            move_balance(balances[local], choices_E, train.loss.bias_rate)
        out.append(
            ReferenceStep(
                before=before,
                batch=batch,
                loss=result.loss.item(),
                balance=result.balance.item(),
                z=result.z.item(),
                norm=norm,
                grads=grads,
                choices=tuple(
                    tuple(routing.expert_TK for routing in layers) for layers in result.routing
                ),
                after=_state(tensors, optimizer, balances),
            )
        )
    return out


def cut_batch(batch: Batch, config: RunConfig) -> list[Batch]:
    """All micro-batches of a step that are not empty, ring after ring."""
    rings, size = config.parallel.rings, config.parallel.micro_batch_size
    cut = [part for ring in range(rings) for part in ring_micro_batches(batch, size, ring, rings)]
    return [part for part in cut if part.sequences]


def initial_balances(config: RunConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Balance biases of the whole model where a run starts, by local name."""
    tensors = balance_tensors(config.model, range(config.model.layers))
    return {local.name: torch.zeros(local.shape, dtype=wide(dtype)) for local in tensors}


def _choices(result: StepResult) -> list[list[int]]:
    """Choices of each expert of each layer with experts, over the whole step."""
    counts = [[routing.count_choices() for routing in layers] for layers in result.routing]
    return [torch.stack(layer).sum(0).tolist() for layer in zip(*counts, strict=True)]


def _state(
    tensors: tuple[LocalTensor, ...],
    optimizer: Optimizer,
    balances: Mapping[str, torch.Tensor],
) -> TrainingState:
    def by_global_name(which: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            name: part.clone()
            for local in tensors
            for name, part in local.split(which[local.name]).items()
        }

    states = optimizer.states
    return TrainingState(
        by_global_name({name: state.master.detach() for name, state in states.items()}),
        by_global_name({name: state.exp_avg for name, state in states.items()}),
        by_global_name({name: state.exp_avg_sq for name, state in states.items()}),
        optimizer.step_count,
        {name: bias_E.clone() for name, bias_E in balances.items()},
    )


def _batch(
    config: RunConfig, store: Mapping[str, torch.Tensor], generator: torch.Generator
) -> Batch:
    """Random sequences that the router decides clearly, with ignored targets of all kinds: short
    documents whose last token predicts nothing, and one sequence without any target.

    A sequence's routing depends on no other sequence, so each is drawn until it is clear.
    """
    train, vocabulary = config.train, config.model.vocab_size
    rows = []
    for _ in range(train.global_batch_size):
        for _ in range(_TRIES_PER_SEQUENCE):
            row = torch.randint(vocabulary, (1, train.sequence_length + 1), generator=generator)
            if _gap(config, store, row[:, :-1]) > TOP_K_GAP:
                break
        else:
            raise ConfigError(
                f"no sequence with a top-k gap above {TOP_K_GAP:g} in {_TRIES_PER_SEQUENCE} "
                "tries; use fewer layers or experts, a larger model.init_std or a shorter "
                "train.sequence_length"
            )
        rows.append(row)
    tokens_BS = torch.cat(rows)
    targets_BS = tokens_BS[:, 1:].clone()
    for place, target_S in enumerate(targets_BS):
        target_S[place % 3 :: 5 + place] = IGNORED
    targets_BS[-1] = IGNORED
    return Batch(tokens_BS[:, :-1].contiguous(), targets_BS)


@torch.no_grad()
def _gap(config: RunConfig, store: Mapping[str, torch.Tensor], tokens_BS: torch.Tensor) -> float:
    """How near the closest decision of any layer is."""
    model = config.model
    _, routings = hidden_states(store, model, tokens_BS)
    layers = range(model.dense_layers, model.layers)
    routers = (AttentionParams.read(store, model, layer).router for layer in layers)
    return min(
        least_margin(router, routing.logits_TE, Rule.of(model))
        for router, routing in zip(routers, routings, strict=True)
        if router is not None
    )
