"""A training in a process of its own: its steps, its errors and its death."""

import os
from dataclasses import dataclass

import pytest

from disagmoe.bench.apart import Apart, Learned, Trainee
from disagmoe.errors import WorkerError


@dataclass(frozen=True)
class Made:
    """Makes itself; step 2 fails, and micro-batches of 0 end the process."""

    def __call__(self) -> Trainee:
        return self

    def step(self, step: int, micro_batch_size: int) -> Learned:
        if not micro_batch_size:
            os._exit(7)
        if step == 2:
            raise ValueError("too far")
        return Learned(float(step), float(micro_batch_size))


def test_steps_count_on_errors_are_told_and_a_death_is_noticed() -> None:
    apart = Apart("side", Made(), threads=1)
    try:
        taken = [apart.step(3), apart.step(4)]
        assert [timed.learned for timed in taken] == [Learned(0.0, 3.0), Learned(1.0, 4.0)]
        assert all(timed.elapsed_s > 0 for timed in taken)
        with pytest.raises(WorkerError, match=r"^side: ValueError: too far$"):
            apart.step(3)
        with pytest.raises(WorkerError, match=r"^side: its process has ended with code 7$"):
            apart.step(0)
    finally:
        apart.close()
