from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from disagmoe.runtime.offsets import clock_offset
from disagmoe.transport.base import ChannelSpec
from disagmoe.transport.inproc import InprocHub

MEMBERS = ("A0.0", "F0.0", "F0.1")


def offsets(clocks: dict[str, object]) -> dict[str, float]:
    hub = InprocHub(MEMBERS, 20.0)

    def run(me: str) -> float:
        channel = hub.transport(me).open([ChannelSpec("world", MEMBERS, MEMBERS)])["world"]
        return clock_offset(channel, me, MEMBERS, clocks[me])  # type: ignore[arg-type]

    with ThreadPoolExecutor(len(MEMBERS)) as pool:
        return dict(zip(MEMBERS, pool.map(run, MEMBERS), strict=True))


def test_what_to_add_to_get_the_first_clock() -> None:
    # the first member's clock stands still at 50, so every round trip takes no time at all
    found = offsets({"A0.0": lambda: 50.0, "F0.0": lambda: 20.0, "F0.1": lambda: 57.5})
    assert found == {"A0.0": 0.0, "F0.0": 30.0, "F0.1": -7.5}


def test_the_shortest_round_trip_counts() -> None:
    # per peer 8 rounds of two readings; the third takes 2 s, all others 10
    first = iter([float(t) for r in range(16) for t in (100 * r, 100 * r + (2 if r == 2 else 10))])
    answers = count(1000, 100)
    found = offsets(
        {"A0.0": lambda: next(first), "F0.0": lambda: float(next(answers)), "F0.1": lambda: 0.0}
    )
    assert found["F0.0"] == 201.0 - 1200.0


def test_one_member_is_its_own_clock() -> None:
    hub = InprocHub(["A0.0"], 1.0)
    channel = hub.transport("A0.0").open([ChannelSpec("world", ("A0.0",), ("A0.0",))])["world"]
    assert clock_offset(channel, "A0.0", ["A0.0"]) == pytest.approx(0.0, abs=0.0)
