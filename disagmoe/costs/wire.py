"""Bytes on the wire: what a row, a choice and a token take in each payload.

The formats are those of `disagmoe/runtime/wire.py` (a test compares them); padding to 16 bytes per
section is left out.
"""

from dataclasses import dataclass

from disagmoe.costs.scenario import Scenario
from disagmoe.schedule.ir import SlotKind

_INDEX_BYTES = 4
_GATE_BYTES = 4
"""Gate weights and their gradients travel in fp32."""
_FP8_BLOCK = 128
"""Numbers that share an fp32 scale (DeepSeek-V3, arXiv:2412.19437 section 3.3.2)."""


@dataclass(frozen=True, slots=True)
class PayloadBytes:
    """Bytes of a payload per row and per choice (a pair of a row and an expert)."""

    row: float
    choice: float = 0.0


def payload_bytes(scenario: Scenario, kind: SlotKind) -> PayloadBytes:
    """Return what `kind` takes; of a residual a token counts as a row."""
    layout = scenario.layout
    hidden = scenario.model.hidden * scenario.attention.element_bytes
    token = _INDEX_BYTES if layout.groups > 1 else 0
    match kind:
        case SlotKind.ROWS:
            row = hidden if scenario.parallel.dispatch == "same" else _fp8(scenario.model.hidden)
            home = layout.fused_residual or scenario.shared_with_experts
            return PayloadBytes(row + token + home, _GATE_BYTES + 2 * _INDEX_BYTES)
        case SlotKind.OUTPUTS:
            return PayloadBytes(hidden + token)
        case SlotKind.DROWS:
            return PayloadBytes(hidden, _GATE_BYTES)
        case SlotKind.FAN_ROWS:  # as rows, without their tokens
            rows = payload_bytes(scenario, SlotKind.ROWS)
            return PayloadBytes(rows.row - token, rows.choice)
        case SlotKind.NEAR_DROWS:
            return payload_bytes(scenario, SlotKind.DROWS)
        case SlotKind.NEAR_OUTPUTS | SlotKind.FAN_DOUTPUTS:
            return PayloadBytes(hidden)
        case SlotKind.DOUTPUTS | SlotKind.RESIDUAL | SlotKind.DRESIDUAL:
            return PayloadBytes(hidden)
        case _:
            raise AssertionError(f"{kind} does not travel")


def _fp8(elements: int) -> float:
    return elements * (1 + 4 / _FP8_BLOCK)
