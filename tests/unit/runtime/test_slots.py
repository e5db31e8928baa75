import threading

import pytest

from disagmoe.errors import ScheduleError, WorkerError
from disagmoe.runtime.slots import SlotTable
from disagmoe.schedule.ir import Slot, SlotKind
from disagmoe.schedule.layout import Side

ROWS = Slot(Side.ATTENTION, SlotKind.ROWS, 1, 0)


def test_a_slot_is_filled_read_and_freed() -> None:
    slots = SlotTable(1.0)
    slots.put(ROWS, "rows")
    assert slots.get(ROWS, str) == "rows"
    assert slots.wait_for(ROWS, str) == "rows"
    assert len(slots) == 1
    slots.free(ROWS)
    assert len(slots) == 0


def test_the_two_sides_have_slots_of_their_own() -> None:
    slots = SlotTable(1.0)
    slots.put(ROWS, "sent")
    slots.put(Slot(Side.EXPERT, SlotKind.ROWS, 1, 0), "received")
    assert slots.get(ROWS, str) == "sent"


def test_faults_of_a_program_name_the_slot() -> None:
    slots = SlotTable(1.0)
    with pytest.raises(ScheduleError, match=r"'A\.rows L1 m0' holds NoneType, not str"):
        slots.get(ROWS, str)
    with pytest.raises(ScheduleError, match=r"'A\.rows L1 m0' is freed but not filled"):
        slots.free(ROWS)
    slots.put(ROWS, 1)
    with pytest.raises(ScheduleError, match=r"'A\.rows L1 m0' is written twice"):
        slots.put(ROWS, 2)
    with pytest.raises(ScheduleError, match=r"'A\.rows L1 m0' holds int, not str"):
        slots.get(ROWS, str)


def test_a_wait_ends_when_the_slot_is_filled() -> None:
    slots = SlotTable(20.0)
    timer = threading.Timer(0.05, slots.put, (ROWS, "late"))
    timer.start()
    assert slots.wait_for(ROWS, str) == "late"
    timer.join()


def test_a_wait_ends_in_time() -> None:
    with pytest.raises(WorkerError, match=r"'A\.rows L1 m0' was never filled: nothing in 0\.05 s"):
        SlotTable(0.05).wait_for(ROWS, str)


def test_a_failure_empties_all_and_ends_waits_now_and_later() -> None:
    slots = SlotTable(20.0)
    slots.put(Slot(Side.ATTENTION, SlotKind.SAVED, 0, 0), "large")
    timer = threading.Timer(0.05, slots.fail, ("F0.0 failed",))
    timer.start()
    with pytest.raises(WorkerError, match=r"was never filled: F0\.0 failed"):
        slots.wait_for(ROWS, str)
    timer.join()
    assert len(slots) == 0
    with pytest.raises(WorkerError, match=r"was never filled: F0\.0 failed"):
        slots.wait_for(ROWS, str)
