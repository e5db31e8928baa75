"""Sides of a comparison that take turns, so that what else a machine does meets all of them."""

from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def take_turns(sides: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Return what each side gives in each round; every round begins with another side."""
    names = list(sides)
    taken: dict[str, list[T]] = {name: [] for name in names}
    for at in range(rounds):
        first = at % len(names)
        for name in (*names[first:], *names[:first]):
            taken[name].append(sides[name]())
    return taken
