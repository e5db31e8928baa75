"""The expert side by itself, against its formula: a row's output is the sum of gate * expert(row),
an expert being down(silu(gate(row)) * up(row))."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from disagmoe.runtime.context import Context
from disagmoe.runtime.experts import ExpertSide
from disagmoe.runtime.parameters import Parameters, local_tensors, used_twice
from disagmoe.runtime.slots import SlotTable
from disagmoe.runtime.wire import Incoming, Outgoing
from disagmoe.schedule.ir import Compute, Op, Slot, SlotKind, TransferKey
from disagmoe.schedule.layout import Side
from tests.unit.runtime.tiny import context_of, tiny

SOURCES = {"A0.0": [(0, 0), (0, 1), (2, 1)], "A0.1": [(0, 1)], "A0.2": []}
"""Pairs of row and local expert, by source."""
ROWS = {"A0.0": 3, "A0.1": 1, "A0.2": 0}
"""Rows; the second one of A0.0 is without a pair."""


class Alone:
    """The second of two expert workers, fed by hand by three attention workers."""

    def __init__(self, *, training: bool = True, **sets: Any) -> None:
        config = tiny(parallel__attention_workers=3, parallel__expert_workers=2, **sets)
        self.context: Context = context_of(config, "F0.1")
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
        self.side = ExpertSide(self.context, own, self.parameters, self.slots)
        self.side.begin(training=training)
        self.training = training

    def slot(self, kind: SlotKind) -> Slot:
        return Slot(Side.EXPERT, kind, 0, 0)

    def forward(self, rows: dict[str, int], pairs: dict[str, list[tuple[int, int]]]) -> Incoming:
        generator = torch.Generator().manual_seed(1)
        wire = self.context.wire
        incoming = Incoming.allocate(
            [(peer, wire.rows(rows[peer], len(pairs[peer]))) for peer in rows],
            torch.device("cpu"),
        )
        for peer, views in incoming.views.items():
            views["rows_RD"].copy_(torch.randn(rows[peer], 8, generator=generator))
            views["gate_P"].copy_(torch.rand(len(pairs[peer]), generator=generator))
            views["row_P"].copy_(torch.tensor([row for row, _ in pairs[peer]]))
            views["expert_P"].copy_(torch.tensor([expert for _, expert in pairs[peer]]))
            if "token_R" in views:
                views["token_R"].copy_(torch.arange(rows[peer]) + 40)
                views["home_R"].copy_(torch.arange(rows[peer]) % 2)
        self.slots.put(self.slot(SlotKind.ROWS), incoming)
        self.side.compute(Compute(Op.EXPERTS_FWD, 0, 0))
        return incoming

    def backward(self, douts: dict[str, torch.Tensor]) -> Outgoing:
        wire = self.context.wire
        arrived = Incoming.allocate(
            [(peer, wire.doutputs(len(dout_RD))) for peer, dout_RD in douts.items()],
            torch.device("cpu"),
        )
        for peer, dout_RD in douts.items():
            arrived.views[peer]["rows_RD"].copy_(dout_RD)
        self.slots.put(self.slot(SlotKind.DOUTPUTS), arrived)
        self.side.compute(Compute(Op.EXPERTS_BWD, 0, 0))
        return self.slots.get(self.slot(SlotKind.DROWS), Outgoing)

    def formula(
        self, rows_RD: torch.Tensor, gate_P: torch.Tensor, pairs: list[tuple[int, int]]
    ) -> torch.Tensor:
        gate_up = self.parameters.values["layers.0.experts.gate_up"]
        down = self.parameters.values["layers.0.experts.down"]
        out = [torch.zeros(8, dtype=torch.float64) for _ in rows_RD]
        for (row, expert), weight in zip(pairs, gate_P, strict=True):
            gate_F, up_F = (gate_up[expert] @ rows_RD[row]).chunk(2)
            out[row] = out[row] + weight * (down[expert] @ (F.silu(gate_F) * up_F))
        return torch.stack(out) if out else rows_RD * 0


def test_each_source_gets_the_outputs_of_its_rows() -> None:
    alone = Alone()
    incoming = alone.forward(ROWS, SOURCES)
    outputs = alone.slots.get(alone.slot(SlotKind.OUTPUTS), Outgoing)
    assert outputs.counts == {peer: (rows, 0) for peer, rows in ROWS.items()}
    for peer, views in incoming.views.items():
        message = alone.context.wire.outputs(ROWS[peer])
        sent = message.views(outputs.buffers[peer])
        expected = alone.formula(views["rows_RD"], views["gate_P"], SOURCES[peer])
        torch.testing.assert_close(sent["rows_RD"], expected, rtol=1e-12, atol=1e-14)
        assert len(outputs.buffers[peer]) == message.nbytes


def test_gradients_are_those_of_the_formula() -> None:
    alone = Alone()
    incoming = alone.forward(ROWS, SOURCES)
    generator = torch.Generator().manual_seed(2)
    douts = {
        peer: torch.randn(rows, 8, generator=generator, dtype=torch.float64)
        for peer, rows in ROWS.items()
    }
    drows = alone.backward(douts)
    weights = [alone.parameters.values[f"layers.0.experts.{leaf}"] for leaf in ("gate_up", "down")]
    sums = [torch.zeros_like(weight) for weight in weights]
    for peer, views in incoming.views.items():
        rows_RD = views["rows_RD"].detach().clone().requires_grad_()
        gate_P = views["gate_P"].detach().clone().requires_grad_()
        out_RD = alone.formula(rows_RD, gate_P, SOURCES[peer])
        expected = torch.autograd.grad(
            out_RD, [rows_RD, gate_P, *weights], douts[peer], materialize_grads=True
        )
        sent = alone.context.wire.drows(ROWS[peer], len(SOURCES[peer])).views(drows.buffers[peer])
        torch.testing.assert_close(sent["rows_RD"], expected[0], rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(sent["gate_P"], expected[1], rtol=1e-10, atol=1e-14)
        for total, grad in zip(sums, expected[2:], strict=True):
            total += grad
        assert drows.counts[peer] == (ROWS[peer], len(SOURCES[peer]))
    for leaf, total in zip(("gate_up", "down"), sums, strict=True):
        grad = alone.parameters.grads[f"layers.0.experts.{leaf}"]
        torch.testing.assert_close(grad, total, rtol=1e-10, atol=1e-14)


def test_without_any_row_all_is_empty_and_gradients_stay_zero() -> None:
    alone = Alone()
    none: dict[str, list[tuple[int, int]]] = {peer: [] for peer in ROWS}
    alone.forward(dict.fromkeys(ROWS, 0), none)
    outputs = alone.slots.get(alone.slot(SlotKind.OUTPUTS), Outgoing)
    drows = alone.backward({peer: torch.empty(0, 8, dtype=torch.float64) for peer in ROWS})
    for sent in (outputs, drows):
        assert sent.counts == dict.fromkeys(ROWS, (0, 0))
        assert {peer: len(buffer) for peer, buffer in sent.buffers.items()} == dict.fromkeys(
            ROWS, 0
        )
    assert not any(bool(grad.any()) for grad in alone.parameters.grads.values())


def test_the_token_of_each_row_comes_back_where_another_group_reads_it() -> None:
    alone = Alone(parallel__groups=2)
    incoming = alone.forward(ROWS, SOURCES)
    outputs = alone.slots.get(alone.slot(SlotKind.OUTPUTS), Outgoing)
    assert list(outputs.buffers) == ["A1.0", "A1.1", "A1.2"]
    norm_D = alone.parameters.values["layers.0.moe_norm.weight"]
    for (peer, views), (target, buffer) in zip(
        incoming.views.items(), outputs.buffers.items(), strict=True
    ):
        sent = alone.context.wire.outputs(ROWS[peer]).views(buffer)
        assert outputs.counts[target] == (ROWS[peer], 0)
        assert sent["token_R"].tolist() == [40 + row for row in range(ROWS[peer])]
        # a fused residual: norm here, and the row itself is added where it is at home
        rows_RD = views["rows_RD"]
        scale = (rows_RD.square().mean(dim=1, keepdim=True) + 1e-6).rsqrt()
        expected = alone.formula(rows_RD * scale * norm_D, views["gate_P"], SOURCES[peer])
        expected = expected + rows_RD * views["home_R"][:, None]
        torch.testing.assert_close(sent["rows_RD"], expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("training", [True, False])
def test_only_training_saves_for_a_backward(training: bool) -> None:
    alone = Alone(training=training)
    alone.forward(ROWS, SOURCES)
    assert len(alone.slots) == (3 if training else 2)


def test_sizes_of_what_comes_are_known() -> None:
    alone = Alone()
    layout, wire = alone.context.layout, alone.context.wire
    counts = {"A0.0": (3, 4), "A0.1": (0, 0), "A0.2": (1, 2)}
    rows = list(alone.side.expected(TransferKey(layout.dispatch(0), 0, 0), counts))
    assert rows == [
        ("A0.0", wire.rows(3, 4)),
        ("A0.1", wire.rows(0, 0)),
        ("A0.2", wire.rows(1, 2)),
    ]
    alone.forward(ROWS, SOURCES)
    grads = list(alone.side.expected(TransferKey(layout.combine_grad(0), 0, 0), None))
    assert grads == [(peer, wire.doutputs(count)) for peer, count in ROWS.items()]


def test_ops_of_attention_are_not_for_experts() -> None:
    with pytest.raises(AssertionError, match="attn_fwd L0 m0 is not for an expert worker"):
        Alone().side.compute(Compute(Op.ATTN_FWD, 0, 0))
