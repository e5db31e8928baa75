"""The slot table of one worker: what its program has written and not yet freed."""

import threading
import time
from typing import TypeVar

from disagmoe.errors import ScheduleError, WorkerError
from disagmoe.schedule.ir import Slot

T = TypeVar("T")


class SlotTable:
    """Values by slot. The verifier has proved the order of accesses; this only holds the values.

    The program's thread writes and frees; threads of channels only wait for what they need.
    """

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s` bounds `wait_for`."""
        self._values: dict[Slot, object] = {}
        self._changed = threading.Condition()
        self._timeout_s = timeout_s
        self._failure = ""

    def put(self, slot: Slot, value: object) -> None:
        """Fill an empty slot."""
        with self._changed:
            if slot in self._values:
                raise ScheduleError(f"'{slot}' is written twice")
            self._values[slot] = value
            self._changed.notify_all()

    def get(self, slot: Slot, kind: type[T]) -> T:
        """Return the value of a filled slot."""
        value = self._values.get(slot)
        if not isinstance(value, kind):
            raise ScheduleError(f"'{slot}' holds {type(value).__name__}, not {kind.__name__}")
        return value

    def wait_for(self, slot: Slot, kind: type[T]) -> T:
        """Return the value of a slot as soon as it is filled. Raises WorkerError when the program
        fails or the timeout passes before."""
        deadline = time.monotonic() + self._timeout_s
        with self._changed:
            while slot not in self._values:
                left = deadline - time.monotonic()
                if self._failure or left <= 0:
                    reason = self._failure or f"nothing in {self._timeout_s:g} s"
                    raise WorkerError(f"'{slot}' was never filled: {reason}")
                self._changed.wait(left)
            return self.get(slot, kind)

    def free(self, slot: Slot) -> object:
        """Empty a slot and return what it held."""
        with self._changed:
            if slot not in self._values:
                raise ScheduleError(f"'{slot}' is freed but not filled")
            return self._values.pop(slot)

    def fail(self, reason: str) -> None:
        """Empty all slots and end every wait: the program has failed with `reason`."""
        with self._changed:
            self._values.clear()
            self._failure = reason
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._values)
