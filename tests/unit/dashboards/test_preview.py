"""Pictures of dashboards from what a Prometheus answers."""

from pathlib import Path
from typing import cast

import pytest

from disagmoe.dashboards.catalogue import DASHBOARDS
from disagmoe.dashboards.panel import Unit
from disagmoe.dashboards.preview import binary_ticks, draw, formatted
from disagmoe.dashboards.prometheus import Prometheus, Series


class Fake:
    """Two workers with values that rise, and nothing for the loss on held-out data."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def over(self, expr: str, start_s: float, end_s: float, step_s: float) -> list[Series]:
        self.asked.append(expr)
        if "eval_loss" in expr:
            return []
        times = tuple(start_s + step * step_s for step in range(5))
        return [
            Series({"run": "r", "instance": name, "layer": name}, times, (1.0, 2.0, 3.0, 2.0, 1.0))
            for name in ("A0.0", "F0.0")
        ]


def test_each_dashboard_is_drawn(tmp_path: Path) -> None:
    server = Fake()
    for board in DASHBOARDS:
        path = tmp_path / f"{board.uid}.png"
        draw(board, cast(Prometheus, server), path, run="r", window="9s", start_s=0.0, end_s=60.0)
        assert path.read_bytes().startswith(b"\x89PNG")
    assert len(server.asked) == sum(len(p.queries) for board in DASHBOARDS for p in board.panels)
    assert [expr for expr in server.asked if "$" in expr] == []


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.256, Unit.RATIO, "25.6 %"),
        (0.0, Unit.SECONDS, "0"),
        (90.0, Unit.SECONDS, "1 min 30 s"),
        (2048.0, Unit.BYTES, "2.0 KiB"),
        (2048.0, Unit.BYTES_PER_S, "2.0 KiB/s"),
        (12.0, Unit.PER_S, "12/s"),
        (0.0003, Unit.NONE, "0.0003"),
        (12345.0, Unit.NONE, "12.3 k"),
    ],
)
def test_values_as_a_person_reads_them(value: float, unit: Unit, text: str) -> None:
    assert formatted(value, unit) == text


@pytest.mark.parametrize(
    ("largest", "ticks"),
    [
        (0.0, [0.0]),
        (5.0, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
        (1536.0, [0.0, 512.0, 1024.0, 1536.0]),
        (4100.0, [0.0, 1024.0, 2048.0, 3072.0, 4096.0]),
    ],
)
def test_ticks_of_bytes_are_round(largest: float, ticks: list[float]) -> None:
    assert binary_ticks(largest) == ticks
