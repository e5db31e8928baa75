"""What the interpreter asks of either side of the cut."""

from collections.abc import Iterable
from typing import Protocol

from disagmoe.runtime.wire import Message
from disagmoe.schedule.ir import Compute, TransferKey

Counts = dict[str, tuple[int, int]]
"""Rows and pairs that each peer will send."""


class SideOps(Protocol):
    """Compute of one worker in one role; reads and writes the worker's slot table."""

    def compute(self, instruction: Compute) -> None:
        """Execute one compute op."""

    def expected(self, key: TransferKey, counts: Counts | None) -> Iterable[tuple[str, Message]]:
        """Peers of an incoming transfer and the message that each sends.

        `counts` is what the peers announced, or None where both ends know the counts already.
        Called by the channel's thread; waits for the slots that it needs.
        """
