"""What counts as part of a step."""

import pytest

from disagmoe.bench.sample import within
from disagmoe.schedule.accounting import Kind


def test_the_pause_before_a_step_is_not_part_of_it() -> None:
    seconds = {Kind.COMPUTE: 2.0, Kind.RECV_WAIT: 1.0, Kind.IDLE: 7.5}
    assert within(seconds, 4.0) == {Kind.COMPUTE: 2.0, Kind.RECV_WAIT: 1.0, Kind.IDLE: 1.0}


def test_a_step_without_a_pause_stays() -> None:
    seconds = {Kind.COMPUTE: 2.0, Kind.IDLE: 0.5}
    assert within(seconds, 2.5) == pytest.approx(seconds)
    assert within(seconds, 2.6) == pytest.approx(seconds)
