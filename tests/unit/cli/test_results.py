"""Stdout is for results alone."""

import sys
import threading

import pytest

from disagmoe.cli.results import stdout_for_results


def test_what_others_print_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with stdout_for_results() as stdout:
        thread = threading.Thread(target=print, args=("a worker died",))
        thread.start()
        thread.join()
        print("{}", file=stdout)
    sys.stdout.write("[]\n")
    assert capsys.readouterr() == ("{}\n[]\n", "a worker died\n")
