"""A step whose layers are cut, message by message, equals the uncut reference.

Plays the runtime by hand: attention workers and expert workers see only what dispatch hands them,
and every backward starts from explicit incoming gradients.
"""

from dataclasses import dataclass

import pytest
import torch

from disagmoe.config.model import ModelConfig
from disagmoe.config.train import LossConfig
from disagmoe.model import names, partition
from disagmoe.model.block import AttentionOut, attention_half, embed, head_loss
from disagmoe.model.dispatch import (
    Dedupe,
    Dispatch,
    combine,
    join_rows,
    place_gates,
    plan_dispatch,
    sum_rows,
)
from disagmoe.model.experts import experts_forward
from disagmoe.model.init import initial_store
from disagmoe.model.losses import (
    IGNORED,
    StepTotals,
    micro_batch_balance_loss,
    sequence_balance_loss,
    z_loss,
)
from disagmoe.model.params import AttentionParams, ExpertParams, HeadParams
from disagmoe.model.rope import Rope
from disagmoe.model.transformer import MicroBatch, reference_step, step_totals

CONFIG = ModelConfig(
    family="mixtral",
    vocab_size=19,
    hidden=8,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=4,
    experts=7,
    top_k=3,
    expert_width=6,
)
LENGTH = 5
Store = dict[str, torch.Tensor]
Grads = dict[str, torch.Tensor]


@dataclass
class ExpertCall:
    """What one expert worker keeps of a forward for its backward."""

    rows: torch.Tensor
    gates: torch.Tensor
    out: torch.Tensor


@dataclass
class LayerState:
    """What all workers of one layer keep of a forward for its backward."""

    inputs: list[torch.Tensor]
    outs: list[AttentionOut]
    plans: list[tuple[Dispatch, ...]]
    calls: list[ExpertCall]


class HandRuntime:
    """M attention workers and N expert workers, one group each."""

    def __init__(self, workers: int, expert_workers: int, dedupe: Dedupe, terms: LossConfig):
        self.dedupe, self.terms, self.workers = dedupe, terms, workers
        self.ranges = partition.expert_ranges(CONFIG.experts, [1.0] * expert_workers)
        everything = partition.attention_tensors(
            CONFIG, range(CONFIG.layers), embedding=True, head=True
        )
        self.dense = self.start(everything)
        self.locals = [
            partition.expert_tensors(CONFIG, range(CONFIG.layers), held) for held in self.ranges
        ]
        self.experts = [self.start(local) for local in self.locals]
        self.grads: Grads = {}
        self.loss = torch.zeros((), dtype=torch.float64)

    def start(self, tensors: tuple[partition.LocalTensor, ...]) -> Store:
        store = initial_store(tensors, seed=1, std=0.3, dtype=torch.float64)
        return {name: tensor.requires_grad_() for name, tensor in store.items()}

    def add(self, name: str, grad: torch.Tensor) -> None:
        self.grads[name] = self.grads[name] + grad if name in self.grads else grad

    def backward(
        self,
        outputs: list[torch.Tensor],
        incoming: list[torch.Tensor],
        store: Store,
        wanted: list[str],
        inputs: list[torch.Tensor],
        prefix: str = "",
    ) -> tuple[torch.Tensor, ...]:
        tensors = [store[name] for name in wanted] + inputs
        grads = torch.autograd.grad(outputs, tensors, incoming)
        for name, grad in zip(wanted, grads[: len(wanted)], strict=True):
            self.add(prefix + name, grad)
        return grads[len(wanted) :]

    def forward_layer(
        self, layer: int, h: list[torch.Tensor]
    ) -> tuple[LayerState, list[torch.Tensor]]:
        rope = Rope.of(CONFIG, LENGTH, torch.float64)
        inputs = [x.detach().requires_grad_() for x in h]
        params = AttentionParams.read(self.dense, CONFIG, layer)
        outs = [attention_half(params, x, CONFIG, rope, layer=layer) for x in inputs]
        plans = [plan_dispatch(out.routing.expert_TK, self.ranges, self.dedupe) for out in outs]
        calls = [self.run_experts(layer, rank, outs, plans) for rank in range(len(self.ranges))]
        following = []
        for worker, out in enumerate(outs):
            parts = [
                (plan.token_R, call.out.detach().split(self.row_counts(plans, rank))[worker])
                for rank, (plan, call) in enumerate(zip(plans[worker], calls, strict=True))
            ]
            following.append(combine(out.x_TD.detach(), parts).view_as(inputs[worker]))
        return LayerState(inputs, outs, plans, calls), following

    def row_counts(self, plans: list[tuple[Dispatch, ...]], rank: int) -> list[int]:
        return [len(plan[rank].token_R) for plan in plans]

    def run_experts(
        self, layer: int, rank: int, outs: list[AttentionOut], plans: list[tuple[Dispatch, ...]]
    ) -> ExpertCall:
        mine = [plan[rank] for plan in plans]
        pairs = list(zip(outs, mine, strict=True))
        rows = torch.cat([out.n_TD.detach()[d.token_R] for out, d in pairs]).requires_grad_()
        gates = torch.cat(
            [out.routing.gate_TK.detach().flatten()[d.choice_P] for out, d in pairs]
        ).requires_grad_()
        row_P = join_rows([d.row_P for d in mine], self.row_counts(plans, rank))
        expert_P = torch.cat([d.expert_P for d in mine])
        params = ExpertParams.read(self.experts[rank], layer)
        return ExpertCall(rows, gates, experts_forward(params, rows, row_P, expert_P, gates))

    def backward_layer(
        self, layer: int, state: LayerState, grad_h: list[torch.Tensor], totals: StepTotals
    ) -> list[torch.Tensor]:
        """Return the gradients of the layer's inputs."""
        row_parts: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in state.outs]
        gate_parts: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in state.outs]
        stacks = [partition.gate_up_name(layer), partition.down_name(layer)]
        for rank, call in enumerate(state.calls):
            mine = [plan[rank] for plan in state.plans]
            sent = torch.cat(
                [grad.flatten(0, 1)[d.token_R] for grad, d in zip(grad_h, mine, strict=True)]
            )
            grad_rows, grad_gates = self.backward(
                [call.out], [sent], self.experts[rank], stacks, [call.rows, call.gates], f"{rank}/"
            )
            pairs = [len(d.choice_P) for d in mine]
            rows_back = grad_rows.split(self.row_counts(state.plans, rank))
            for worker, d in enumerate(mine):
                row_parts[worker].append((d.token_R, rows_back[worker]))
                gate_parts[worker].append((d.choice_P, grad_gates.split(pairs)[worker]))
        counts = torch.stack([out.routing.count_choices() for out in state.outs]).sum(0)
        tokens = sum(out.x_TD.shape[0] for out in state.outs)
        wanted = list(names.attention_shapes(CONFIG, layer))
        grads = []
        for worker, out in enumerate(state.outs):
            mine = out.x_TD.shape[0]
            routing = out.routing
            if self.terms.aux_scope == "sequence":
                balance = sequence_balance_loss(routing, mine // LENGTH, totals)
            else:
                balance = micro_batch_balance_loss(routing, counts, tokens, totals)
            router_loss = self.terms.aux_coef * balance + self.terms.z_coef * z_loss(
                routing, totals
            )
            outputs = [out.x_TD, out.n_TD, routing.gate_TK, router_loss]
            incoming = [
                grad_h[worker].flatten(0, 1),
                sum_rows(mine, row_parts[worker]),
                place_gates(mine, CONFIG.top_k, gate_parts[worker]),
                torch.ones_like(router_loss),
            ]
            grads += self.backward(outputs, incoming, self.dense, wanted, [state.inputs[worker]])
        return grads

    def step(self, micro_batches: list[MicroBatch]) -> None:
        totals = step_totals(micro_batches)
        for micro_batch in micro_batches:
            tokens = micro_batch.tokens_BS.tensor_split(self.workers)
            targets = micro_batch.targets_BS.tensor_split(self.workers)
            embedded = [embed(self.dense["embed.weight"], part) for part in tokens]
            h, states = embedded, []
            for layer in range(CONFIG.layers):
                state, h = self.forward_layer(layer, h)
                states.append(state)
            grad_h = []
            head = HeadParams.read(self.dense, CONFIG)
            for x, target in zip(h, targets, strict=True):
                x.requires_grad_()
                loss = head_loss(head, x.flatten(0, 1), target.flatten(), CONFIG, totals)
                self.loss = self.loss + loss.detach()
                one = [torch.ones_like(loss)]
                grad_h += self.backward(
                    [loss], one, self.dense, list(names.head_shapes(CONFIG)), [x]
                )
            for layer in reversed(range(CONFIG.layers)):
                grad_h = self.backward_layer(layer, states[layer], grad_h, totals)
            for x, grad in zip(embedded, grad_h, strict=True):
                self.backward([x], [grad], self.dense, ["embed.weight"], [])

    def global_grads(self) -> Grads:
        grads = {name: grad for name, grad in self.grads.items() if "/" not in name}
        for rank, tensors in enumerate(self.locals):
            for local in tensors:
                grads |= local.split(self.grads[f"{rank}/{local.name}"])
        return grads


def micro_batches() -> list[MicroBatch]:
    ids = torch.randint(19, (5, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    targets = ids[:, 1:].clone()
    targets[1, :3] = IGNORED
    targets[4] = IGNORED
    return [
        MicroBatch(ids[:3, :-1], targets[:3]),
        MicroBatch(ids[3:, :-1], targets[3:]),
    ]


@pytest.mark.parametrize("scope", ["sequence", "micro_batch"])
@pytest.mark.parametrize("dedupe", ["rank", "none"])
@pytest.mark.parametrize(("workers", "expert_workers"), [(1, 1), (2, 3), (3, 2), (4, 7)])
def test_cut_step_equals_the_reference(
    workers: int, expert_workers: int, dedupe: Dedupe, scope: str
) -> None:
    terms = LossConfig.model_validate({"aux_coef": 0.5, "z_coef": 0.1, "aux_scope": scope})
    runtime = HandRuntime(workers, expert_workers, dedupe, terms)
    runtime.step(micro_batches())
    store = initial_store(partition.model_tensors(CONFIG), seed=1, std=0.3, dtype=torch.float64)
    expected = reference_step(store, CONFIG, micro_batches(), terms)
    torch.testing.assert_close(runtime.loss, expected.loss, rtol=1e-12, atol=0)
    grads = runtime.global_grads()
    assert set(grads) == set(expected.grads)
    for name, grad in expected.grads.items():
        torch.testing.assert_close(grads[name], grad, rtol=1e-10, atol=1e-13)
