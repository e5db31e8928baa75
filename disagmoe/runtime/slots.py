"""The slot table of one worker: what its program has written and not yet freed."""

from typing import TypeVar

from disagmoe.errors import ScheduleError
from disagmoe.schedule.ir import Slot

T = TypeVar("T")


class SlotTable:
    """Values by slot. The verifier has proved the order of accesses; this only holds the values."""

    def __init__(self) -> None:
        self._values: dict[Slot, object] = {}

    def put(self, slot: Slot, value: object) -> None:
        """Fill an empty slot."""
        if slot in self._values:
            raise ScheduleError(f"'{slot}' is written twice")
        self._values[slot] = value

    def get(self, slot: Slot, kind: type[T]) -> T:
        """Return the value of a filled slot."""
        value = self._values.get(slot)
        if not isinstance(value, kind):
            raise ScheduleError(f"'{slot}' holds {type(value).__name__}, not {kind.__name__}")
        return value

    def free(self, slot: Slot) -> None:
        """Empty a slot."""
        if slot not in self._values:
            raise ScheduleError(f"'{slot}' is freed but not filled")
        del self._values[slot]

    def clear(self) -> None:
        """Empty all slots, after a failure."""
        self._values.clear()

    def __len__(self) -> int:
        return len(self._values)
