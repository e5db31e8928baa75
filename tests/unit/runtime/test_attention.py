"""The attention side by itself: what it sends, keeps, counts and asks for. Whole steps are compared
in tests/parity/test_layouts.py."""

from typing import Any

import pytest
import torch

from disagmoe.config.run import RunConfig
from disagmoe.data.batch import Batch
from disagmoe.model import names
from disagmoe.model.block import attention_half
from disagmoe.model.losses import StepTotals
from disagmoe.model.params import AttentionParams
from disagmoe.model.rope import Rope
from disagmoe.runtime.attention import AttentionSide, Part, Residual, Saved
from disagmoe.runtime.context import Context
from disagmoe.runtime.parameters import Parameters, local_tensors, used_twice
from disagmoe.runtime.slots import SlotTable
from disagmoe.runtime.wire import Outgoing
from disagmoe.schedule.ir import Compute, Op, Slot, SlotKind, TransferKey
from disagmoe.schedule.layout import Side
from tests.unit.runtime.tiny import batch_of, context_of, threads, tiny


class Alone:
    """An attention side that talks to nobody."""

    def __init__(self, config: RunConfig, worker: str = "A0.0", *, training: bool = True) -> None:
        self.context: Context = context_of(config, worker)
        layout, own = self.context.layout, self.context.worker
        self.parameters = Parameters(
            local_tensors(config.model, layout, own, self.context.expert_ranges),
            used_twice(config.model, layout, own),
            seed=0,
            std=config.model.init_std,
            dtype=self.context.dtype,
            device=self.context.device,
        )
        self.slots = SlotTable(1.0)
        self.side = AttentionSide(self.context, own, self.parameters, self.slots)
        self.batch: Batch = batch_of(config)
        totals = StepTotals(valid_targets=10, tokens=20, sequences=4, micro_batches=1)
        part = Part(self.batch.tokens_BS, self.batch.targets_BS, self.batch.tokens_BS.numel())
        self.side.begin([part], totals, training=training)

    def compute(self, op: Op, layer: int | None = None) -> None:
        self.side.compute(Compute(op, layer, 0))

    def slot(self, kind: SlotKind, value: type[Any], layer: int = 0) -> Any:
        return self.slots.get(Slot(Side.ATTENTION, kind, layer, 0), value)


def test_embedding_is_a_lookup() -> None:
    alone = Alone(tiny())
    alone.compute(Op.EMBED)
    hidden_TD = alone.slot(SlotKind.HIDDEN, torch.Tensor)
    table_VD = alone.parameters.values[names.EMBED]
    assert torch.equal(hidden_TD, table_VD[alone.batch.tokens_BS.flatten()])
    assert not hidden_TD.requires_grad


@pytest.mark.parametrize("dedupe", ["rank", "none"])
@pytest.mark.parametrize("sets", [{}, {"parallel__groups": 2}], ids=["p1", "p2"])
def test_rows_gates_and_ids_are_those_of_the_routing(dedupe: str, sets: dict[str, Any]) -> None:
    config = tiny(parallel__expert_workers=3, parallel__dedupe=dedupe, **sets)
    alone = Alone(config)
    alone.compute(Op.EMBED)
    alone.compute(Op.ATTN_FWD, 0)
    params = AttentionParams.read(alone.parameters.values, config.model, 0)
    h_BSD = alone.slot(SlotKind.HIDDEN, torch.Tensor).view(4, 5, 8)
    rope = Rope.of(config.model, 5, torch.float64, torch.device("cpu"))
    out = attention_half(params, h_BSD, config.model, rope, layer=0)
    carried_TD = out.x_TD if sets else out.n_TD  # a fused residual carries x itself
    rows = alone.slot(SlotKind.ROWS, Outgoing)
    gates = torch.zeros(20, 4, dtype=torch.float64)
    homes = torch.zeros(20, dtype=torch.int64)
    for rank, experts in enumerate(alone.context.expert_ranges):
        name = f"F0.{rank}"
        count, pairs = rows.counts[name]
        message = alone.context.wire.rows(count, pairs)
        assert len(rows.buffers[name]) == message.nbytes
        views = message.views(rows.buffers[name])
        sent = alone.slot(SlotKind.SAVED, Saved).sent[rank]
        assert torch.equal(views["rows_RD"], carried_TD[sent.token_R])
        assert ("token_R" in views) == ("home_R" in views) == bool(sets)
        if sets:
            assert torch.equal(views["token_R"].long(), sent.token_R)
            homes.index_add_(0, sent.token_R, views["home_R"].long())
        token_P = sent.token_R[views["row_P"].long()]
        gates[token_P, views["expert_P"].long() + experts.start] += views["gate_P"]
    # every token's gates arrive once, at its experts
    expected = torch.zeros_like(gates).scatter(1, out.routing.expert_TK, out.routing.gate_TK)
    assert torch.equal(gates, expected)
    assert homes.tolist() == [1 if sets else 0] * 20


@pytest.mark.parametrize("training", [True, False])
def test_only_training_saves_for_a_backward(training: bool) -> None:
    alone = Alone(tiny(), training=training)
    alone.compute(Op.EMBED)
    alone.compute(Op.ATTN_FWD, 0)
    assert len(alone.slots) == (4 if training else 3)
    residual = alone.slot(SlotKind.RESIDUAL, Residual)
    assert not residual.x_TD.requires_grad
    if training:
        saved = alone.slot(SlotKind.SAVED, Saved)
        assert saved.h_TD.is_leaf
        assert saved.out.x_TD.requires_grad
        assert torch.equal(saved.out.x_TD, residual.x_TD)


def test_what_is_counted_in_a_forward_pass() -> None:
    alone = Alone(tiny(train__loss__aux_coef=0.0, train__loss__z_coef=0.0))
    alone.compute(Op.EMBED)
    alone.compute(Op.ATTN_FWD, 0)
    routing = alone.slot(SlotKind.SAVED, Saved).out.routing
    counters = alone.side.counters
    assert counters.choices_LE.tolist() == [
        torch.bincount(routing.expert_TK.flatten(), minlength=4).tolist(),
        [0, 0, 0, 0],
    ]
    z = routing.logits_TE.logsumexp(dim=1).square().sum().item() / 20
    assert counters.z_LM[0, 0].item() == pytest.approx(z, rel=1e-12)
    assert counters.balance_LM[0, 0] > 0
    # without weight they are counted, and hold no graph
    assert alone.slot(SlotKind.SAVED, Saved).terms is None


@pytest.mark.parametrize(
    ("sets", "channel", "peers"),
    [
        ({}, "F0>A0.act", {"F0.0": "outputs", "F0.1": "outputs"}),
        ({}, "F0>A0.grad", {"F0.0": "drows", "F0.1": "drows"}),
        (
            {"parallel__groups": 2, "parallel__residual": "direct"},
            "A1>A0.grad",
            {"A1.0": "residual"},
        ),
    ],
)
def test_sizes_of_what_comes_are_known(
    sets: dict[str, Any], channel: str, peers: dict[str, str]
) -> None:
    alone = Alone(tiny(parallel__expert_workers=2, **sets))
    alone.compute(Op.EMBED)
    alone.compute(Op.ATTN_FWD, 0)
    (found,) = [one for one in alone.context.layout.channels() if str(one) == channel]
    wire, sent = alone.context.wire, alone.slot(SlotKind.SAVED, Saved).sent
    sizes = {
        "outputs": [wire.outputs(len(to.token_R)) for to in sent],
        "drows": [wire.drows(len(to.token_R), len(to.row_P)) for to in sent],
        "residual": [wire.residual(20)],
    }
    expected = [(peer, sizes[kind][rank]) for rank, (peer, kind) in enumerate(peers.items())]
    assert list(alone.side.expected(TransferKey(found, 0, 0), None)) == expected


def test_announced_counts_give_the_sizes_of_outputs() -> None:
    alone = Alone(tiny(parallel__groups=2, parallel__expert_workers=2))
    channel = alone.context.layout.combine(1)
    counts = {"F1.0": (7, 0), "F1.1": (0, 0)}
    wire = alone.context.wire
    expected = [("F1.0", wire.outputs(7)), ("F1.1", wire.outputs(0))]
    assert list(alone.side.expected(TransferKey(channel, 1, 0), counts)) == expected


def test_the_table_of_rotations_is_kept_for_one_length() -> None:
    alone = Alone(tiny())
    first = alone.side._rope(5)
    assert alone.side._rope(5) is first
    alone.side._rope(7)
    assert alone.side._rope(5) is not first


def test_ops_of_experts_are_not_for_attention() -> None:
    with pytest.raises(AssertionError, match="experts_fwd L0 m0 is not for an attention worker"):
        Alone(tiny()).compute(Op.EXPERTS_FWD, 0)


def test_summing_choices_is_waiting_and_not_compute() -> None:
    config = tiny(
        parallel__attention_workers=2,
        train__loss__aux_scope="micro_batch",
        trace__first_step=0,
        trace__steps=1,
    )
    with threads(config, [batch_of(config)]) as run:
        reports = run.each(lambda runtime: runtime.run_step(0))
    kinds = {
        (span.label.partition(" ")[0], str(span.kind))
        for report in reports.values()
        for span in (report.trace.spans if report.trace else ())
    }
    assert ("reduce_counts", "idle") in kinds  # the work of others is awaited, not the network
    assert ("reduce_counts", "compute") not in kinds
    assert ("attn_bwd", "compute") in kinds
