"""Stdout belongs to the script."""

import logging

import pytest
import ray._private.worker as library

from disagmoe.cluster.printing import printing_to_log


def test_what_ray_prints_goes_to_the_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    death = {"lines": ["A worker died."], "pid": "raylet", "is_err": False}
    caplog.set_level(logging.INFO)
    with printing_to_log():
        library.print_to_stdstream(death, ignore_prefix=False)
    assert capsys.readouterr() == ("", "")
    assert caplog.messages == ["Ray (raylet): A worker died."]


def test_afterwards_ray_prints_again() -> None:
    before = library.print_to_stdstream
    with printing_to_log():
        assert library.print_to_stdstream is not before
    assert library.print_to_stdstream is before


def test_the_thread_that_prints_deaths_asks_for_the_printer_by_that_name() -> None:
    assert "print_to_stdstream" in library.listen_error_messages.__code__.co_names
