"""Signals as exceptions, held back, and kept from Ray's handlers."""

import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

import pytest
import ray._private.utils

from disagmoe.cluster.signals import deferred, sigterm_handler_kept, sigterm_raises


@pytest.fixture(autouse=True)
def _default_handlers() -> Iterator[None]:
    """Whatever the shell has made of them: what it starts in the background ignores SIGINT."""
    terminate = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, interrupt)


def test_sigterm_raises_inside_the_block_and_is_as_before_after_it() -> None:
    with pytest.raises(SystemExit) as raised, sigterm_raises():
        signal.raise_signal(signal.SIGTERM)
    assert raised.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def swallow_and_exit_otherwise() -> None:
    try:
        signal.raise_signal(signal.SIGTERM)
    except SystemExit:
        sys.exit(1)


def test_the_exit_code_survives_a_library_that_exits_for_it() -> None:
    with pytest.raises(SystemExit) as raised, sigterm_raises():
        swallow_and_exit_otherwise()
    assert raised.value.code == 143
    with pytest.raises(SystemExit) as raised, sigterm_raises():
        sys.exit(1)
    assert raised.value.code == 1


def test_a_sigterm_that_a_library_has_swallowed_is_found() -> None:
    with sigterm_raises() as termination:
        termination.look()
        with suppress(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit) as raised:
            termination.look()
    assert raised.value.code == 143


def test_a_handler_of_the_users_stays() -> None:
    came: list[int] = []

    def handler(number: int, _: FrameType | None) -> None:
        came.append(number)

    signal.signal(signal.SIGTERM, handler)
    with sigterm_raises():
        signal.raise_signal(signal.SIGTERM)
    assert came == [signal.SIGTERM]


def test_deferred_signals_come_after_the_block() -> None:
    done: list[str] = []

    def clean_up() -> None:
        with deferred():
            signal.raise_signal(signal.SIGINT)
            done.append("clean-up")

    with pytest.raises(KeyboardInterrupt):
        clean_up()
    assert done == ["clean-up"]
    with pytest.raises(SystemExit), sigterm_raises(), deferred():
        signal.raise_signal(signal.SIGTERM)


def exit_for_it(_: int, __: FrameType | None) -> None:
    sys.exit(15)


def start_like_ray() -> None:
    ray._private.utils.set_sigterm_handler(exit_for_it)


def meet_a_sigterm() -> None:
    start_like_ray()
    signal.raise_signal(signal.SIGTERM)


def test_a_sigterm_waits_until_ray_has_started() -> None:
    done: list[str] = []

    def start() -> None:
        with sigterm_handler_kept():
            meet_a_sigterm()
            done.append("started")

    with sigterm_raises():
        ours = signal.getsignal(signal.SIGTERM)
        with pytest.raises(SystemExit) as raised:
            start()
        assert (raised.value.code, done) == (143, ["started"])
        assert signal.getsignal(signal.SIGTERM) is ours
    start_like_ray()
    assert signal.getsignal(signal.SIGTERM) is exit_for_it


def test_a_second_sigterm_does_not_wait_for_ray() -> None:
    def start() -> None:
        with sigterm_handler_kept():
            meet_a_sigterm()
            meet_a_sigterm()
            pytest.fail("went on after the second one")

    with pytest.raises(SystemExit) as raised, sigterm_raises():
        start()
    assert raised.value.code == 143


def test_a_sigterm_that_ray_does_not_survive_is_handed_on() -> None:
    def start() -> None:
        with sigterm_handler_kept():
            meet_a_sigterm()
            raise RuntimeError("the raylet is gone")

    with pytest.raises(SystemExit) as raised, sigterm_raises():
        start()
    assert raised.value.code == 143


def test_a_handler_that_only_notes_a_sigterm_is_called_once() -> None:
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    signal.signal(signal.SIGTERM, note)
    with sigterm_handler_kept():
        meet_a_sigterm()
    assert came == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is note


def test_the_alarm_that_would_abort_the_process_is_taken_back() -> None:
    """Ray's handler below Python sets it."""
    signal.alarm(30)
    with pytest.raises(SystemExit), sigterm_raises(), sigterm_handler_kept():
        signal.raise_signal(signal.SIGTERM)
    assert signal.alarm(0) == 0


def test_where_nobody_handled_it_rays_handler_is_there_while_it_starts() -> None:
    with pytest.raises(SystemExit) as raised, sigterm_handler_kept():
        meet_a_sigterm()
    assert raised.value.code == 15
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
