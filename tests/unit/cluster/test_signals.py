"""Signals as exceptions, held back, and kept from Ray's handlers."""

import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

import pytest

from disagmoe.cluster.signals import deferred, sigterm_handler_kept, sigterm_raises


@pytest.fixture(autouse=True)
def _default_sigterm() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


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


def ray_like(_: int, __: FrameType | None) -> None:
    sys.exit(15)


def test_the_handler_is_put_back() -> None:
    with sigterm_raises():
        ours = signal.getsignal(signal.SIGTERM)
        with sigterm_handler_kept():
            signal.signal(signal.SIGTERM, ray_like)
        assert signal.getsignal(signal.SIGTERM) is ours


def meet_the_other_handler() -> None:
    with sigterm_handler_kept():
        signal.signal(signal.SIGTERM, ray_like)
        signal.raise_signal(signal.SIGTERM)


def test_a_sigterm_that_meets_the_other_handler_is_handed_on() -> None:
    with pytest.raises(SystemExit) as raised, sigterm_raises():
        meet_the_other_handler()
    assert raised.value.code == 143


def test_it_is_as_raised_where_nobody_handled_it_before() -> None:
    with pytest.raises(SystemExit) as raised:
        meet_the_other_handler()
    assert raised.value.code == 15
