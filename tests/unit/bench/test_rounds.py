"""Whose turn it is."""

from functools import partial

from disagmoe.bench.rounds import take_turns


def test_every_side_is_once_in_each_round_and_each_round_begins_with_another() -> None:
    order: list[str] = []

    def step(name: str) -> str:
        order.append(name)
        return f"{name}{order.count(name)}"

    taken = take_turns({name: partial(step, name) for name in "abc"}, rounds=4)
    assert taken == {name: [f"{name}{at}" for at in range(1, 5)] for name in "abc"}
    assert "".join(order) == "abcbcacababc"
