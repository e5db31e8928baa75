"""Workers that stop to answer."""

from disagmoe.actors.heartbeats import EVERY_S, Heartbeats
from tests.unit.actors.fakes import FakeClock, FakeCrew


def test_only_who_was_quiet_is_asked_and_only_who_does_not_answer_is_silent() -> None:
    clock = FakeClock()
    crew = FakeCrew(clock, silent=("F0.0",))
    beats = Heartbeats(crew, 10.0, clock)
    assert list(beats.beat()) == []
    beats.begin()
    clock.now_s = EVERY_S
    beats.heard("A0.0")
    assert list(beats.beat()) == []
    clock.now_s = 9.9
    beats.heard("A0.0")
    assert list(beats.beat()) == []
    clock.now_s = 10.0
    assert list(beats.beat()) == ["F0.0"]
    beats.heard("F0.0", ping=True)
    assert list(beats.beat()) == []


def test_a_driver_that_was_busy_blames_nobody() -> None:
    clock = FakeClock()
    beats = Heartbeats(FakeCrew(clock), 10.0, clock)
    beats.begin()
    clock.now_s = 100.0
    assert list(beats.beat()) == []
