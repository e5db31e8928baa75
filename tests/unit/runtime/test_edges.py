"""Which edges a channel has, and what their targets find."""

from collections import Counter
from itertools import count
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.runtime.edges import EdgeMeter, EdgeRate, rounds
from disagmoe.transport.base import ChannelSpec
from disagmoe.transport.inproc import InprocHub
from tests.contract.transport_cases import Member, run_threads

A, F = ("A0.0", "A0.1"), ("F0.0", "F0.1", "F0.2")
OUT = ChannelSpec("A0>F0.act", A, F)
MESH = ChannelSpec("experts", F, F)
WORLD = ChannelSpec("world", A + F, A + F, on_host=True)


class Ticks:
    """A clock that goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self._ticks = count()

    def now(self) -> float:
        return float(next(self._ticks))

    def time_s(self, moment: float) -> float:
        return moment


def test_rounds_of_a_one_way_channel() -> None:
    assert rounds(OUT) == [
        (("A0.0", "F0.0"), ("A0.1", "F0.1")),
        (("A0.0", "F0.1"), ("A0.1", "F0.2")),
        (("A0.0", "F0.2"), ("A0.1", "F0.0")),
    ]


def test_rounds_of_a_mesh_leave_out_oneself() -> None:
    assert rounds(ChannelSpec("experts", F[:2], F[:2])) == [(("F0.0", "F0.1"), ("F0.1", "F0.0"))]


@given(st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_every_edge_is_in_one_round_and_every_worker_once_in_each(
    sources: int, targets: int, mesh: bool
) -> None:
    ends = tuple(f"A{i}" for i in range(sources))
    spec = ChannelSpec("c", ends, ends if mesh else tuple(f"F{i}" for i in range(targets)))
    made = rounds(spec)
    expected = [(s, t) for s in spec.sources for t in spec.targets if s != t]
    assert Counter(edge for edges in made for edge in edges) == Counter(expected)
    for edges in made:
        for end in (0, 1):
            assert max(Counter(edge[end] for edge in edges).values()) == 1


def test_targets_find_the_rates_of_all_their_edges() -> None:
    def case(member: Member) -> list[EdgeRate]:
        meter = EdgeMeter(
            member.me,
            WORLD.members,
            member.channels["world"],
            torch.device("cpu"),
            Ticks(),  # type: ignore[arg-type]
            large_bytes=4096,
        )
        channels = member.channels
        return [
            rate for spec in (OUT, MESH) for rate in meter.measure(spec, channels.get(spec.name))
        ]

    hub = InprocHub(A + F, 10.0)
    found: dict[str, Any] = run_threads(hub.transport, case, (OUT, MESH, WORLD))

    def rate(channel: str, source: str, target: str) -> EdgeRate:
        return EdgeRate(
            channel=channel, source=source, target=target, bytes_per_s=4096.0, message_s=1.0
        )

    assert found["A0.0"] == []
    assert found["F0.1"] == [
        rate("A0>F0.act", "A0.1", "F0.1"),
        rate("A0>F0.act", "A0.0", "F0.1"),
        rate("experts", "F0.0", "F0.1"),
        rate("experts", "F0.2", "F0.1"),
    ]
    assert sum(len(rates) for rates in found.values()) == 2 * 3 + 3 * 2
